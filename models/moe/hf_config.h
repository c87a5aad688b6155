// config.json of a mixture of experts in transformers: mixtral, qwen2_moe, qwen3_moe, olmoe, dots1.
// Tests: tests/trainer/weights/hf_experts_test.cc
#ifndef FSDP_TRAIN_MODELS_MOE_HF_CONFIG_H_
#define FSDP_TRAIN_MODELS_MOE_HF_CONFIG_H_

#include <vector>

#include "models/moe/config.h"
#include "models/table_family.h"

namespace fsdp {

using MoeRelative = HfRelative<MoeConfig>;

// As LlamaRelatives(). 0 in num_experts or num_experts_per_tok: the file must say.
std::vector<MoeRelative> MoeRelatives();
// The relative that has the features of `config`. Throws CheckpointError where none has.
const MoeRelative& MoeRelativeOf(const std::vector<MoeRelative>& relatives,
                                 const MoeConfig& config);

// Read and write the fields that are no plain key. Reading throws CheckpointError.
void ReadMoeConfig(const MoeRelative& relative, HfObject& hf, MoeConfig& config);
void WriteMoeConfig(const MoeRelative& relative, const MoeConfig& config, JsonTree& json);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_MOE_HF_CONFIG_H_
