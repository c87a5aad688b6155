// config.json of a GPT-2.
// Tests: tests/trainer/weights/hf_config_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_GPT2_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_GPT2_H_

#include <nlohmann/json_fwd.hpp>

#include "models/gpt2/config.h"
#include "trainer/weights/hf_object.h"

namespace fsdp {

Gpt2Config ReadHfGpt2(HfObject& hf);  // Throws CheckpointError.
nlohmann::ordered_json WriteHfGpt2(const Gpt2Config& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_GPT2_H_
