// Bytes of unknown origin (sampled text, paths, arguments) made fit for a terminal or a file.
#ifndef FSDP_TRAIN_TRAINER_CORE_UTF8_H_
#define FSDP_TRAIN_TRAINER_CORE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

// The length of the well-formed character that `bytes` begins with, or of the ill-formed sequence
// that one U+FFFD stands for: a maximal subpart (Unicode 15, 3.9), as in Python's decode("utf-8",
// "replace"). `bytes` is not empty.
struct Utf8Part {
  size_t bytes;
  bool well_formed;
};
Utf8Part FirstUtf8Part(std::string_view bytes);

// Bytes, 1 to 4, of the well-formed UTF-8 character (Unicode 15, table 3-7: no overlong forms, no
// surrogates) that `bytes` begins with; 0 if it begins with none.
size_t Utf8Length(std::string_view bytes);

// Well-formed UTF-8 that moves no cursor: characters stay, line feeds and tabs among them; other
// control characters (C0, DEL, C1) and bytes that are no UTF-8 appear as \xNN each. Not reversible:
// backslashes stay too.
std::string Printable(std::string_view bytes);
// `text` with each number of more than 40 digits cut behind 20 of them, as in 1000...
std::string WithShortNumbers(std::string_view text);
// Printable() for a name inside a line: line feeds and tabs, too, appear as \xNN.
std::string PrintableName(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_UTF8_H_
