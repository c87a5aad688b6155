// Locks between processes on a file or directory that they have open: flock(2). A lock belongs to
// what open(2) made: a second one of the same process is kept out too, and the lock ends when the
// last descriptor of it is closed, so with its process, however that ends. Between hosts over NFS
// Linux sees those of files, but not of directories.
#ifndef FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_
#define FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_

#include "trainer/core/unique_fd.h"

namespace fsdp {

enum class LockMode { kShared, kExclusive };
enum class LockResult {
  kHeld,
  kBusy,  // Somebody else's is in the way.
  kNone,  // Not to be had, in most cases because the file system has none; errno says why.
};
LockResult TryLock(const UniqueFd& file, LockMode mode);  // Never blocks.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_
