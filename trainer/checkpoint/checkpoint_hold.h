// Who reads a checkpoint of a run that goes on keeps it from being removed by its rotation: a lock
// (flock) on the directory, shared by readers, which whoever removes it must have alone. It ends
// with its process.
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

  // False: the directory was not there, or on its way out, or is another one by now.
  bool held() const { return directory_.get() >= 0; }

 private:
  UniqueFd directory_;
};

// For the one who removes: nullopt where a reader holds the directory, or it is not there.
std::optional<UniqueFd> LockForRemoval(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_HOLD_H_
