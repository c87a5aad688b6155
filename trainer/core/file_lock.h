// Locks between processes on a file or directory that they have open: flock(2). A lock belongs to
// the open file that open(2) made: a second open(2) in the same process is kept out too. The lock
// ends when its last descriptor is closed, so at the latest with its process. Over NFS, Linux
// shares locks of files between hosts, but not those of directories.
#ifndef FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_
#define FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_

#include "trainer/core/unique_fd.h"

namespace fsdp {

enum class LockMode { kShared, kExclusive };
enum class LockResult {
  kHeld,
  kBusy,  // Another lock is in the way.
  kNone,  // Locking failed, mostly because the file system has no locks; errno says why.
};
LockResult TryLock(const UniqueFd& file, LockMode mode);  // Never blocks.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_FILE_LOCK_H_
