// Whether what a recipe calls text is text.
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_CHECK_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_CHECK_H_

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
// The same of files that are not open yet: of a compressed one the first 64 KiB are decompressed.
void CheckFormats(std::span<const std::string> paths);

// Of a text's places, the characters that Python's decode("utf-8", "replace") makes of it, one of
// so many may be no UTF-8, so U+FFFD.
inline constexpr int64_t kOneInvalidOf = 1000;

struct TooInvalid {
  std::string what;     // "a.txt: 12 of 345 places are no UTF-8, the first at byte 6".
  std::string refusal;  // For a DataError: that, and the cures.
};
// Empty where fewer are. Counts what begins in the first `most` bytes.
std::optional<TooInvalid> FindTooInvalid(const FileContents& file, size_t most = std::string::npos);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_CHECK_H_
