// Why a text is no JSON (RFC 8259), and where; and the JSON that Python's json module writes, which
// is a little more. For texts that a parser has refused: slow, and in our own words.
// Tests: tests/trainer/core/json_text_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_TEXT_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

struct JsonFault {
  int64_t line = 1, column = 1;  // From 1; columns are characters.
  std::string reason;            // "want a value, got '}'".
};

// The first fault of `text`; empty where there is none. A text that is nested more than 1,000 deep
// has none: NestsDeeper() finds it.
std::optional<JsonFault> FindJsonFault(std::string_view text);
// The same of a text that a parser has refused; one without a known fault "is no JSON".
JsonFault FaultOfRefused(std::string_view text);

// A text as Python's json reads it: with NaN, Infinity, -Infinity, numbers that are too large for a
// double, and escapes of half a character (\ud83d).
struct PythonJson {
  struct Odd {
    size_t at;           // Its first byte.
    std::string reason;  // Why it is no JSON.
  };
  std::string text;  // The same in JSON: null in place of such numbers, U+FFFD of such escapes.
  // The first in each member of the object that the text is; of equal members in the last, which
  // counts.
  std::map<std::string, Odd, std::less<>> odd;
};
// Empty where Python would refuse it, too: FindJsonFault() says why.
std::optional<PythonJson> ReadPythonJson(std::string_view text);
// `text` for a parser of JSON, with such numbers as texts, which no reader of a number takes. The
// text itself where it is JSON already, or none to Python either.
std::string JsonOfPython(std::string text);

// A fault at byte `at` of the text.
JsonFault FaultAt(std::string_view text, size_t at, std::string reason);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_TEXT_H_
