// config.json of a Llama and its relatives: mistral, qwen2, qwen3.
// Tests: tests/trainer/weights/hf_config_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_LLAMA_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_LLAMA_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "models/llama/config.h"
#include "trainer/weights/hf_object.h"

namespace fsdp {

// Empty for a model_type that is none of them. Throws CheckpointError.
std::optional<LlamaConfig> ReadHfLlama(std::string_view model_type, HfObject& hf);

// Both throw CheckpointError for a shape that none of them has.
nlohmann::ordered_json WriteHfLlama(const LlamaConfig& config);
std::string HfModelType(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_LLAMA_H_
