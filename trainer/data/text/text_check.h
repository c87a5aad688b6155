// Checks that a recipe's text files are text.
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHECK_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trainer/data/data_files.h"

namespace fsdp {

// Throws DataError that names the file, what it is and the cure, where FindNoText() finds something
// (file_format.h).
void CheckFormat(const FileContents& file);
// CheckFormat() for files that are not open yet. Decompresses the first 64 KiB of a compressed
// file.
void CheckFormats(std::span<const std::string> paths);

// One in so many characters of a text may be U+FFFD because its bytes are no UTF-8. Characters are
// those of Python's decode("utf-8", "replace").
inline constexpr int64_t kOneInvalidOf = 1000;

struct TooInvalid {
  std::string what;     // "a.txt: 12 of 345 places are no UTF-8, the first at byte 6".
  std::string refusal;  // For a DataError: that, and the cures.
};
// Empty where fewer are. Counts the characters that begin in the first `most` bytes.
std::optional<TooInvalid> FindTooInvalid(const FileContents& file, size_t most = std::string::npos);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHECK_H_
