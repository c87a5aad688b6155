// Unicode as in Python's str: case, white space, lines. Texts are well-formed UTF-8; positions and
// lengths are of code points unless they say bytes.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_PYTHON_TEXT_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_PYTHON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/chat/jinja/value.h"

namespace fsdp::jinja {
size_t CodePoints(std::string_view text);
// The byte at which code point `n` begins; text.size() behind the last one.
size_t ByteOffset(std::string_view text, size_t n);
std::vector<uint32_t> Decode(std::string_view text);

bool IsSpace(uint32_t c);  // str.isspace(), and \s of re.
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);  // A sigma ends a word by the letters beside it alone.

// Without the characters of `chars`, or without white space where it is null, at its ends.
std::string_view Strip(std::string_view text, const std::string* chars, bool left, bool right);
// str.splitlines(): at every line boundary that Python knows, also U+2028.
std::vector<std::string_view> SplitLines(std::string_view text);
// str.split(): at `by`, or at runs of white space where it is null; `most` < 0: all.
std::vector<std::string_view> Split(std::string_view text, const std::string* by, int64_t most);
// str.replace() of a text that is not empty, at most so many times.
std::string Replace(std::string_view text, std::string_view from, std::string_view to, size_t most);
std::string Quoted(std::string_view text);  // repr() of a str, with its quotes.

// JSON into values, and values into JSON as Python's json.dumps() writes it.

// Throws Fault: an integer of more than 64 bits, a text that is no UTF-8, more than kMostDepth
// levels.
Value FromJson(const nlohmann::ordered_json& json);

// `indent` < 0: all in one line. Throws Fault: what has no JSON.
std::string ToJson(const Value& value, bool ensure_ascii, int64_t indent, Budget& budget);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_PYTHON_TEXT_H_
