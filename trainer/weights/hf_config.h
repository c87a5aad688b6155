// config.json of a Hugging Face directory: the shape of a model under the names of its family there
// (github.com/huggingface/transformers, models/<model_type>/configuration_<model_type>.py). One
// table a family says which key is which field, what a key that is absent means, and which values
// of the others leave the model as it is here.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/hf_object.h"
#include "models/shape.h"
#include "trainer/core/dtype.h"

namespace fsdp {

struct HfConfig {
  ModelShape shape;                  // With the dropouts that it is to be trained with.
  std::vector<std::string> ignored;  // Keys that are not looked at: to be said.
  std::vector<int32_t> eos;          // What ends a text.
};

// Refuses by name whatever this version would compute in another way: a model_type that no family
// reads, another activation, sliding windows in use, parts of heads that
// are not rotated, experts, quantised weights, dropout where we have none, ... A null counts as
// absent. Throws CheckpointError with `path` and the key.
// `holds_tensor`: what config.json leaves to the files beside it.
HfConfig ParseHfConfig(std::string_view text, const std::string& path,
                       const HfObject::HoldsTensor& holds_tensor = nullptr);
HfConfig ReadHfConfig(const std::string& directory);  // Of its config.json.

// What ends a text of the model in `directory`, as transformers' generate() has it: what its
// generation_config.json says, or else its config.json. Empty where neither says. Throws
// CheckpointError.
std::vector<int32_t> ReadHfEos(const std::string& directory);

// Of the weights in `directory`, by the dtype or torch_dtype of its config.json; empty where there
// is no such file, or it names none of fp32, bf16 and fp16.
std::optional<DType> ReadHfDType(const std::string& directory);

// Tokens with a meaning, where there are such.
struct HfTokenIds {
  std::optional<int32_t> bos, eos, pad;
};

// The text of a config.json that transformers makes the same model from. `dtype`: of the files
// beside it, "float32", "bfloat16" or "float16". Throws CheckpointError for a shape that no family
// there has.
std::string HfConfigToJson(const ModelShape& shape, std::string_view dtype,
                           const HfTokenIds& ids = {});

// What transformers calls the family, such as "qwen2". Throws as HfConfigToJson().
std::string HfModelType(const ModelShape& shape);

// The text of a generation_config.json. Where nothing is for padding, what ends a text pads, as
// generate() would choose itself, with a warning; config.json must not say so: transformers gives
// no gradient to the embedding of its pad_token_id.
std::string HfGenerationConfigToJson(const HfTokenIds& ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_
