// The tokenizer of text sources: token = byte.
#ifndef FSDP_TRAIN_TRAINER_DATA_BYTE_TOKENIZER_H_
#define FSDP_TRAIN_TRAINER_DATA_BYTE_TOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

inline constexpr int32_t kByteVocabSize = 256;

std::vector<int32_t> EncodeBytes(std::string_view text);

// The exact bytes, which need not be UTF-8: Printable() (observe/utf8.h) makes them fit to show.
// Throws std::invalid_argument for a token outside [0, 256); a model with a larger vocabulary is
// sampled over its first 256 logits.
std::string DecodeBytes(std::span<const int32_t> tokens);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_BYTE_TOKENIZER_H_
