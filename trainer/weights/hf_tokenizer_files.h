// The tokenizer of a Hugging Face directory: files that transformers' AutoTokenizer finds there and
// makes our ids of, and the tokens that configurations name.
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
  std::string tokenizer_class;  // That tokenizer_config.json names.
};

// Of the tokenizer `name` (OpenTokenizer). A tokenizer.json or a SentencePiece model is copied, and
// what lies beside it under the names that transformers gives; `bytes` becomes a tokenizer.json of
// 256 tokens. Where nobody says how transformers is to load it, a tokenizer_config.json does.
// `eot`: what ended the documents of training, where that was not the tokenizer's own. `positions`:
// the longest sequence, which tokenizer_config.json is made to name. `chat_template`: the file of
// one that is not the tokenizer's own, or "". Throws DataError where a file
// is gone or damaged.
HfTokenizerFiles ReadHfTokenizerFiles(const std::string& name, std::optional<int32_t> eot,
                                      int64_t positions, const std::string& chat_template = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TOKENIZER_FILES_H_
