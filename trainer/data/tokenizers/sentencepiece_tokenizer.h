// SentencePiece models (Kudo and Richardson 2018, arXiv:1808.06226), by the library of that name.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>

#include "trainer/data/tokenizers/side_files.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

// `model`: the contents of a .model file; `path` is for messages. The same ids as the library's
// Encode(); tokens of the files beside it are found first, as transformers finds them. eot() is
// their eos_token, or the model's eos piece; bos() their bos_token, or the model's, where
// tokenizer_config.json says add_bos_token.
//
// A text is encoded in parts (PartEnd) only between two plain words of ASCII, and only by a model
// none of whose pieces holds a space behind its start: then no piece reaches across. Still a
// unigram model may cut some words in another way of the same worth ("bb" "b" for "b" "bb"): it
// adds up float32 scores from the start of the text, and ties are for rounding to break. Which of
// the ways it is differs between versions of the library too (0.1.97 to 0.2.0 agree, 0.2.3 does
// not). Throws DataError for what is no model.
std::shared_ptr<const Tokenizer> ParseSentencePiece(const std::string& path, std::string_view model,
                                                    const SideFiles& beside);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_TOKENIZER_H_
