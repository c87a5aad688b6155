// The tokenizer that a recipe or a command line names.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_OPEN_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_OPEN_TOKENIZER_H_

#include <memory>
#include <string>

#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

// `bytes`, a tokenizer.json (hf_tokenizer.h) or a SentencePiece model (sentencepiece_tokenizer.h);
// which of the two a file is, its contents say. A tokenizer_config.json beside it is read too.
// Throws DataError that names the file: missing, damaged, or asking for what is not supported.
std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_OPEN_TOKENIZER_H_
