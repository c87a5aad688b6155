// A checkpoint is not removed while another process reads it. Readers share a lock (flock) on the
// directory; a process that removes the directory must hold the lock alone. The lock ends with its
// process. Files are opened in the held directory, so the directory may have another name by then:
// a run that goes back to an earlier step renames later ones.
//
// Other hosts that share a directory over NFS do not see the lock (Linux locks directories on the
// host alone): a reader there may find files gone, and says so.
// Tests: tests/trainer/checkpoint/checkpoint_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_

#include <optional>
#include <string>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// A reader's hold. Never blocks, never throws. Where the file system has no locks, it holds nothing
// but says that it does: nothing better is possible.
class CheckpointHold {
 public:
  CheckpointHold() = default;
  explicit CheckpointHold(const std::string& directory);
  // Takes no lock: files are found by their paths.
  static CheckpointHold OfNothing(const std::string& directory);

  // False: the directory was missing, was being removed, or is another one by now. Files are then
  // found by their paths.
  bool held() const { return directory_.get() >= 0; }
  const std::string& path() const { return path_; }  // As given.

  // For openat(2) and fstatat(2): a file of the directory is `name` below `at`.
  struct Place {
    int at;
    std::string name;
  };
  Place PlaceOf(const std::string& file) const;
  // Opens for reading. Returns no descriptor, and errno says why, where that fails. Never waits for
  // a pipe.
  UniqueFd Open(const std::string& file) const;

  // Whether the path no longer leads to the directory: it was moved or removed.
  bool Moved() const;

 private:
  std::string path_;
  UniqueFd directory_;
};

// The lock to remove a directory; nullopt where a reader holds the directory or it is missing.
std::optional<UniqueFd> LockForRemoval(const std::string& directory);
// Whether a reader holds the directory; false where that cannot be told.
bool IsHeld(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_
