#include "trainer/data/byte_tokenizer.h"

#include <stdexcept>

namespace fsdp {

std::vector<int32_t> EncodeBytes(std::string_view text) {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string DecodeBytes(std::span<const int32_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token < 0 || token >= kByteVocabSize) {
      throw std::invalid_argument("[DecodeBytes] token " + std::to_string(token) +
                                  " is not a byte");
    }
    text += static_cast<char>(token);
  }
  return text;
}

}  // namespace fsdp
