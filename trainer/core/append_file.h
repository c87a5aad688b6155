// A file that only grows, by whole records: what a crash or a full disk leaves ends between two.
#ifndef FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_
#define FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// Throws CheckpointError (exit 5) with path and reason for all that the disk refuses, and where the
// path is no file that can be read again: a device, a pipe, a directory.
class AppendFile {
 public:
  static std::optional<AppendFile> Create(const std::string& path);  // Nothing if there is one.
  static AppendFile Open(const std::string& path);                   // Makes it if there is none.

  AppendFile(AppendFile&& other) noexcept = default;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile() = default;

  const std::string& path() const { return path_; }

  // Handed to the kernel whole when it returns, or not at all: a record cut off by a full disk is
  // taken back. Throws, too, where the path no longer leads to what was written: it was removed,
  // renamed, replaced or cut.
  void Write(std::string_view record);

  // Blocks until all records are on the disk. Throws as Write does.
  void Sync();

 private:
  AppendFile(std::string path, UniqueFd file);
  void CheckIsThere() const;

  std::string path_;
  UniqueFd file_;
  int64_t bytes_ = 0;  // Of the file as we know it.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_APPEND_FILE_H_
