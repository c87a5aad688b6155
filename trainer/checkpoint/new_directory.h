// A directory that appears whole under its name or not at all, and replaces nothing.
// Tests: tests/trainer/checkpoint/checkpoint_writer_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_

#include <string>
#include <string_view>

#include "trainer/core/unique_fd.h"

namespace fsdp {

class NewDirectory {
 public:
  // Makes temporary(), and the parents. Throws CheckpointError where `path` exists or another
  // process is writing temporary(). Removes what a dead process left there.
  explicit NewDirectory(const std::string& path);
  // Removes temporary() and its files, unless published.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // <path>.fsdp-tmp: a name that nobody else uses.
  const std::string& temporary() const { return temporary_; }

  // Writes and syncs a file there. A name with a / has a directory of its own.
  void Write(const std::string& name, std::string_view contents) const;

  // Syncs the directory, renames it and syncs its parent. The writers of its files must have synced
  // them. Throws CheckpointError, also where `path` exists by now.
  void Publish();

 private:
  void RemoveTemporary() noexcept;

  std::string path_, temporary_;
  UniqueFd lock_;  // The directory, locked.
  bool published_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_
