// config.json of a Llama and its relatives in transformers: mistral, qwen2, qwen3.
// Tests: tests/trainer/weights/hf_config_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_HF_CONFIG_H_
#define FSDP_TRAIN_MODELS_LLAMA_HF_CONFIG_H_

#include <string_view>
#include <vector>

#include "models/llama/config.h"
#include "models/table_family.h"

namespace fsdp {

using LlamaRelative = HfRelative<LlamaConfig>;

// 0 in head_dim or num_key_value_heads: follows from the other fields.
std::vector<LlamaRelative> LlamaRelatives();
// The relative that has the features of `config`. Throws CheckpointError where none has.
const LlamaRelative& LlamaRelativeOf(const std::vector<LlamaRelative>& relatives,
                                     const LlamaConfig& config);

// Names of tensors, and features that no model with this attention has.
HfNames LlamaHfNames();
std::vector<HfFeature> LlamaFeatures();

// Read and write the fields that are no plain key, of any model_type with this attention: those of
// models/moe, too. Reading throws CheckpointError.
void ReadLlamaConfig(std::string_view model_type, HfObject& hf, LlamaConfig& config);
void WriteLlamaConfig(std::string_view model_type, const LlamaConfig& config, JsonTree& json);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_HF_CONFIG_H_
