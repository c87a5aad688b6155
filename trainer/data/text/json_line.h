// A line of a .jsonl file as Python's json reads it: json.dumps() writes NaN for a number that is
// none, and half a character where a text was cut inside one.
// Tests: tests/trainer/data/text/json_line_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_JSON_LINE_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_JSON_LINE_H_

#include <functional>
#include <string>
#include <string_view>

namespace fsdp {

// Whether a member of the line's object is read; null: all are.
using ReadsMember = std::function<bool(const std::string& member)>;

// A line that is no JSON, as JSON: what only Python takes is null, or U+FFFD, in members that are
// not read (json_text.h). No number or character of a member that is read is guessed: there is no
// right number for NaN, and Python's tokenizers refuse half a character, too.
// Throws DataError, without file and line, that has column and reason, where Python would refuse
// the line, and for what only Python takes in a member that is read.
std::string PlainJson(std::string_view line, const ReadsMember& reads);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_JSON_LINE_H_
