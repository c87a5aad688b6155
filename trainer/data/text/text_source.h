// Text files, end to end, one token a byte. Nothing is put between two files.
// Tests: tests/trainer/data/tokens/token_source_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

class TextSource : public TokenSource {
 public:
  // Files as in ExpandTextPaths. Throws DataError, also for what is no text and, but for
  // `allow_invalid`, where a file's first GiB is TooInvalid (text_check.h).
  explicit TextSource(std::span<const std::string> paths, bool allow_invalid = false);

  int64_t size() const override { return starts_.back(); }
  int32_t vocab_size() const override { return 256; }
  void Read(int64_t offset, std::span<int32_t> out) const override;
  std::string Describe() const override;
  std::string Where(int64_t offset) const override;
  std::vector<DataFile> Files() const override;

  // TooInvalid::what of the first file that is TooInvalid; empty where none is.
  const std::string& too_invalid() const { return too_invalid_; }

 private:
  size_t FileOf(int64_t offset) const;

  std::vector<FileContents> files_;
  std::vector<int64_t> starts_;  // Where each file begins, and the end of the last.
  std::string too_invalid_;
};

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

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_SOURCE_H_
