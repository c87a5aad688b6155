// config.json of a Hugging Face directory: the shape of a model under the names of its family there
// (github.com/huggingface/transformers, models/<model_type>/configuration_<model_type>.py). One
// table a family says which key is which field, what a key that is absent means, and which values
// of the others leave the model as it is here.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_HF_CONFIG_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_HF_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "models/shape.h"

namespace fsdp {

struct HfConfig {
  ModelShape shape;
  std::vector<std::string> ignored;  // Keys that are not looked at: for the log.
};

// Refuses by name whatever this version would compute in another way: a model_type other than gpt2,
// llama, mistral, qwen2 and qwen3, another activation, sliding windows in use, parts of heads that
// are not rotated, experts, quantised weights, ... A null counts as absent. Dropout acts in
// training only, so any value gives the same model. Throws CheckpointError with `path` and the key.
HfConfig ParseHfConfig(std::string_view text, const std::string& path);
HfConfig ReadHfConfig(const std::string& directory);  // Of its config.json.

// The text of a config.json that transformers makes the same model from. `dtype`: of the files
// beside it, "float32", "bfloat16" or "float16". Throws CheckpointError for a shape that no family
// there has.
std::string HfConfigToJson(const ModelShape& shape, std::string_view dtype);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_HF_CONFIG_H_
