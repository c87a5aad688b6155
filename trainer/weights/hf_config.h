// config.json of a Hugging Face directory: the shape of a model under the names of its family there
// (github.com/huggingface/transformers, models/<model_type>/configuration_<model_type>.py). One
// table per family maps keys to fields, gives defaults for absent keys, and lists the values of
// other keys that this model supports.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/family.h"
#include "models/hf_object.h"
#include "trainer/core/dtype.h"

namespace fsdp {

struct HfConfig {
  ModelShape shape;                  // With the dropouts to train with.
  std::vector<std::string> ignored;  // Keys that are ignored, for a message.
  std::vector<int32_t> eos;          // Tokens that end a text.
  std::vector<std::string> notes;    // Where files are read otherwise than config.json says.
};

// Refuses by name whatever this version would compute in another way: a model_type that no family
// reads, another activation, sliding windows in use, parts of heads that are not rotated, experts,
// weights quantised otherwise than in bitsandbytes' nf4, dropout where we have none, ... A null
// counts as absent. Throws CheckpointError with `path` and the key, for weights quantised otherwise
// ConfigError. `files`: those beside config.json, for what it leaves open; null: there are
// none.
HfConfig ParseHfConfig(std::string_view text, const std::string& path,
                       const HfFiles* files = nullptr);
HfConfig ReadHfConfig(const std::string& directory);  // Parses its config.json.

// Names of the files in `directory`, beside its weights, that say how the model is used: what it
// is, its tokenizer with its templates, what becomes of an image.
std::vector<std::string> HfTextFilesIn(const std::string& directory);
// Those of them that chat templates beyond the first are in.
std::vector<std::string> MoreHfTemplatesIn(const std::string& directory);

// The tokens that end a text of the model in `directory`, as for transformers' generate(): from
// generation_config.json, or else from config.json. Empty where neither says. Throws
// CheckpointError.
std::vector<int32_t> ReadHfEos(const std::string& directory);

// The text of generation_config.json in `directory`, a JSON object; "": there is none. Throws
// CheckpointError.
std::string ReadHfGenerationConfig(const std::string& directory);
// The names of a classifier's classes in order: id2label of config.json in `directory`. Empty where
// it names none, or not each. Throws CheckpointError.
std::vector<std::string> ReadHfClasses(const std::string& directory);

// The dtype of the weights in `directory`: dtype or torch_dtype of its config.json. Empty where
// there is no such file, or it names none of fp32, bf16 and fp16.
std::optional<DType> ReadHfDType(const std::string& directory);

// Tokens with a special meaning, if there are any.
struct HfTokenIds {
  std::optional<int32_t> bos, eos, pad;
  std::vector<int32_t> other_ends = {};  // Ends of a text, beside eos.
};

// The text of a config.json from which transformers makes the same model. `dtype`: that of the
// files beside it, "float32", "bfloat16" or "float16". `classes`: a classifier's, which are called
// LABEL_0 and so on where this has another number of names. Throws CheckpointError for a shape that
// no family of transformers has.
std::string HfConfigToJson(const ModelShape& shape, std::string_view dtype,
                           const HfTokenIds& ids = {},
                           const std::vector<std::string>& classes = {});

// The family's name in transformers, such as "qwen2". Throws as HfConfigToJson().
std::string HfModelType(const ModelShape& shape);

// The text of a generation_config.json: `base`, the text of another one or "", with the tokens that
// end a text, and with the others where `base` has none. Without a padding token the token that
// ends a text pads, as generate() would choose itself, with a warning. config.json must not say so:
// transformers gives no gradient to the embedding of its pad_token_id.
std::string HfGenerationConfigToJson(const HfTokenIds& ids, const std::string& base = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_CONFIG_H_
