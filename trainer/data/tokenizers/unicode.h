// Text as tokenizers want it: well-formed UTF-8, in a normal form.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNICODE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// `text` itself where it is well-formed UTF-8 (Unicode 15, table 3-7), else `buffer`, filled with
// it and U+FFFD for each maximal subpart that is not: what Python's decode("utf-8", "replace")
// gives. 3 GB/s of ASCII.
std::string_view WellFormed(std::string_view text, std::string& buffer);

// The number of U+FFFD for ill-formed parts that begin in text[begin, end), and where the first one
// begins. The counts of stretches of a text add up to that of the text.
struct IllFormed {
  int64_t count = 0;
  int64_t characters = 0;  // Well-formed ones, too: U+FFFD is one each.
  size_t first = 0;        // Byte of `text`, where count > 0.
};
IllFormed CountIllFormed(std::string_view text, size_t begin, size_t end);

// The code point at the start of well-formed, non-empty `text`, and its bytes.
struct CodePoint {
  uint32_t value;
  size_t bytes;
};
CodePoint FirstCodePoint(std::string_view text);
CodePoint LastCodePoint(std::string_view text);
void AppendUtf8(uint32_t code_point, std::string& out);

bool IsWhiteSpace(uint32_t code_point);  // The property White_Space.
// Letters, marks, decimal digits, connectors and joiners: \w of UTS #18, but for the few symbols
// that are alphabetic.
bool IsWordCharacter(uint32_t code_point);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Appends well-formed `text` in that form (Unicode 15, by utf8proc).
void AppendNormalized(std::string_view text, NormalForm form, std::string& out);
// The same, and appends for each byte the byte of `text` that it comes from. For characters that
// the form changes, that is the first byte of the stretch that is changed as a whole: a base and
// its marks.
void AppendNormalized(std::string_view text, NormalForm form, std::string& out,
                      std::vector<size_t>& from);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNICODE_H_
