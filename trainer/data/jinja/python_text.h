// Unicode as in Python's str: classes of characters, case, white space, lines. Strings are
// well-formed UTF-8; positions and lengths are of code points unless they say bytes.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_PYTHON_TEXT_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_PYTHON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::jinja {

bool IsAscii(std::string_view text);
size_t CodePoints(std::string_view text);
// The byte at which code point `n` begins; text.size() behind the last one.
size_t ByteOffset(std::string_view text, size_t n);
std::vector<uint32_t> Decode(std::string_view text);

bool IsSpace(uint32_t c);      // str.isspace(), and \s of re.
bool IsPrintable(uint32_t c);  // str.isprintable()
bool IsAlpha(uint32_t c);
bool IsDecimal(uint32_t c);
bool IsDigit(uint32_t c);  // Decimals, superscripts, circled digits.
bool IsAlnum(uint32_t c);
int DecimalValue(uint32_t c);  // -1: no decimal digit.

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Title(std::string_view text);  // str.title()
std::string SwapCase(std::string_view text);
bool IsUpper(std::string_view text);
bool IsLower(std::string_view text);
bool IsTitle(std::string_view text);

struct Sides {
  bool left = true, right = true;
};
// Without the characters of `chars`, or without white space where it is null, at its ends.
std::string_view Strip(std::string_view text, const std::string* chars, Sides sides);
// str.splitlines(): at every line boundary that Python knows, also U+2028.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// str.split() and str.rsplit() at runs of white space; `most` < 0: all.
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t most);
std::vector<std::string_view> RSplitSpace(std::string_view text, int64_t most);
// The same at a separator that is not empty.
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view by, int64_t most);
std::vector<std::string_view> RSplitAt(std::string_view text, std::string_view by, int64_t most);
// str.replace(); `most` < 0: all. An empty `from` stands between all characters.
std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most);
// "\x41", "\u0041" or "\U00000041": the shortest of them that holds the code point.
std::string CodePointEscape(uint32_t c);
// repr() of a str, with its quotes.
std::string Quoted(std::string_view text);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_PYTHON_TEXT_H_
