// The tokenizer of a Hugging Face directory: files from which transformers' AutoTokenizer makes our
// ids, and the tokens that configurations name.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_TOKENIZER_FILES_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_TOKENIZER_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trainer/weights/hf_config.h"

namespace fsdp {

struct HfTokenizerFiles {
  std::map<std::string, std::string> contents;  // By the name of the file.
  HfTokenIds ids;
  std::string tokenizer_class;  // The one that tokenizer_config.json names.
};

// The files of the tokenizer `name` (OpenTokenizer). A tokenizer.json or a SentencePiece model is
// copied, with the files beside it under the names that transformers gives; `bytes` becomes a
// tokenizer.json of 256 tokens. Adds a tokenizer_config.json where no file says how transformers is
// to load the tokenizer. `eot`: the token that ended documents in training, where it was not the
// tokenizer's own. `positions`: the longest sequence, for tokenizer_config.json. `chat_template`:
// the file of a template that is not the tokenizer's own, or "". Throws DataError where a file
// is gone or damaged.
HfTokenizerFiles ReadHfTokenizerFiles(const std::string& name, std::optional<int32_t> eot,
                                      int64_t positions, const std::string& chat_template = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TOKENIZER_FILES_H_
