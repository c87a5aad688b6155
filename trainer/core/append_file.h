// A file that only grows, by whole records. After a crash or on a full disk it still ends with a
// whole record.
#ifndef FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// Throws CheckpointError (exit 5) with path and reason where the disk refuses a call, and where the
// path cannot be read again: a device, a pipe, a directory.
class AppendFile {
 public:
  static std::optional<AppendFile> Create(const std::string& path);  // Nothing if the file exists.
  static AppendFile Open(const std::string& path);                   // Creates a missing file.

  AppendFile(AppendFile&& other) noexcept = default;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile() = default;

  const std::string& path() const { return path_; }

  // Hands the record to the kernel whole or not at all: a part that a full disk cut off is taken
  // back. Also throws if the file at the path was removed, renamed, replaced or truncated.
  void Write(std::string_view record);

  // Blocks until all records are on the disk. Throws as Write does.
  void Sync();

 private:
  AppendFile(std::string path, UniqueFd file);
  void CheckIsThere() const;

  std::string path_;
  UniqueFd file_;
  int64_t bytes_ = 0;  // The file's size by our own count.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_
