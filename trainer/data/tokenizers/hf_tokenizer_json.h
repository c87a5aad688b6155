// Reading parts of a tokenizer.json, with its errors.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_JSON_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/json_reader.h"

namespace fsdp {

inline constexpr int32_t kMostIds = 1 << 22;

// Turned into a DataError with the file's name in one place.
struct HfRefused {
  std::string what;
};

inline constexpr JsonErrors kHfErrors{
    .raise = [](const std::string& message) { throw HfRefused{message}; },
    .separator = " ",
    .key_quote = "`",
    .integer = "is no id",
    .number = "is no number",
    .text = "is no text",
    .list = "is no list"};

// Absent and null are `standard`.
inline bool HfFlag(const JsonValue& part, const char* key, bool standard = false) {
  const auto value = part.Find(key);
  return value ? value->Boolean() : standard;
}

inline int32_t HfId(const JsonValue& value) {
  return static_cast<int32_t>(value.Integer(0, kMostIds - 1));
}

// The elements of a list, all of one name.
inline std::vector<JsonValue> HfParts(const JsonValue& list, const std::string& place) {
  std::vector<JsonValue> parts = list.Elements();
  for (JsonValue& part : parts) part = part.Named(place);
  return parts;
}

// The pattern of a `Replace` or `Split`: text, or a regular expression.
struct HfPattern {
  bool literal;
  std::string text;
};
inline HfPattern HfPatternOf(const JsonValue& part) {
  const JsonValue json = part.At("pattern");
  const bool literal = json.Has("String");
  const std::string& text = json.At(literal ? "String" : "Regex").Text();
  if (text.empty()) json.Refuse("is empty");
  return {literal, text};
}

[[noreturn]] inline void HfUnsupported(const JsonValue& part, const std::string& what) {
  part.Refuse(what + " is not supported");
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_JSON_H_
