// Who reads a checkpoint of a run that goes on keeps it from being removed by its rotation: a lock
// (flock) on the directory, shared by readers, which whoever removes it must have alone. It ends
// with its process. Files are opened in the directory that is held, so it may have another name by
// then: a run that goes back to an earlier step renames later ones.
//
// Between hosts that share a directory by NFS the lock is not seen (Linux locks directories on
// the host alone): a reader there may find files gone, and says so.
// Tests: tests/trainer/checkpoint/checkpoint_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_

#include <optional>
#include <string>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// A reader's. Never blocks, never throws. Where the file system knows no locks it holds nothing and
// says that it does: there is nothing better to be had.
class CheckpointHold {
 public:
  CheckpointHold() = default;
  explicit CheckpointHold(const std::string& directory);
  // Takes no lock: files are found by their paths.
  static CheckpointHold OfNothing(const std::string& directory);

  // False: the directory was not there, or on its way out, or is another one by now. Files are then
  // found by their paths.
  bool held() const { return directory_.get() >= 0; }
  const std::string& path() const { return path_; }  // As given.

  // For openat(2) and fstatat(2): a file of the directory is `name` below `at`.
  struct Place {
    int at;
    std::string name;
  };
  Place PlaceOf(const std::string& file) const;
  // For reading; closed, and errno says why, where it cannot be. Never waits for a pipe.
  UniqueFd Open(const std::string& file) const;

  // Whether the path no longer leads to the directory: it was moved or removed.
  bool Moved() const;

 private:
  std::string path_;
  UniqueFd directory_;
};

// For the one who removes: nullopt where a reader holds the directory, or it is not there.
std::optional<UniqueFd> LockForRemoval(const std::string& directory);
// Whether somebody holds it; false where that cannot be told.
bool IsHeld(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_
