// Fields of sentencepiece_model.proto that the library's C++ interface does not show.
// Tests: tests/trainer/data/tokenizers/side_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_MODEL_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

struct SentencePieceSettings {
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;
};
SentencePieceSettings ReadSentencePieceSettings(std::string_view model);

// The model, which adds no space before a text.
std::string WithoutDummyPrefix(std::string_view model);

// The tokenizer.json that transformers' T5Tokenizer makes of a unigram model: behind the pieces
// <extra_id_{n-1}> to <extra_id_0>. `finds_all`: these, and the model's own special pieces, are
// found in a text before the model sees it; otherwise the ends alone. Throws std::invalid_argument
// for a model of another kind.
std::string T5TokenizerJson(std::string_view model, int32_t extra_ids, bool finds_all);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_SENTENCEPIECE_MODEL_H_
