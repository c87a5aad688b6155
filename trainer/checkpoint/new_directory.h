// A directory that appears whole under its name or not at all, and replaces nothing.
// Tests: tests/trainer/checkpoint/checkpoint_writer_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_

#include <string>

#include "trainer/core/unique_fd.h"

namespace fsdp {

class NewDirectory {
 public:
  // Makes temporary(), and the parents. Throws CheckpointError where `path` exists, or another
  // process is at temporary(); what a dead one left there is removed.
  explicit NewDirectory(const std::string& path);
  // Removes temporary() and the files in it, unless they were published.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // <path>.fsdp-tmp: a name that nobody else uses.
  const std::string& temporary() const { return temporary_; }

  // Syncs the directory, gives it its name and syncs its parent. The files in it are synced by who
  // wrote them. Throws CheckpointError, also where `path` has come to exist meanwhile.
  void Publish();

 private:
  void RemoveTemporary() noexcept;

  std::string path_, temporary_;
  UniqueFd lock_;  // The directory, locked.
  bool published_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_NEW_DIRECTORY_H_
