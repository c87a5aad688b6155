// The lock by which a run directory has one writer: rank 0 of one job, for as long as it lives.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_LOCK_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_LOCK_H_

#include <chrono>
#include <functional>
#include <string>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// Holds a lock of the kernel on the file `directory`/.lock, which stays. The lock ends with the
// process, however that ends. It belongs to the open file and not to the process: a second rank 0
// of the same process is refused too, and no other close() of the file gives the lock away. An NFS
// server keeps the lock for all hosts, and gives it back when a host that crashed is back or has
// been silent for the server's lease. The file names the holder.
class RunLock {
 public:
  // A job that a launcher has started again may find the last job's rank 0 still dying.
  static constexpr std::chrono::milliseconds kPatience{500}, kPatienceAfterRestart{20000};

  // Blocks for `patience` at most, and no longer than until `stop` (may be null) says so. Throws
  // CheckpointError: another holds it, named by host, process and start, and nothing has been
  // touched; or the file cannot be made.
  explicit RunLock(const std::string& directory, std::chrono::milliseconds patience = kPatience,
                   const std::function<bool()>& stop = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Why there is no lock: the file system has none (Lustre without -o flock, some FUSE). Training
  // goes on without, as it would be impossible there otherwise, and the caller says so. Empty: the
  // lock is held.
  const std::string& missing() const { return missing_; }

 private:
  UniqueFd file_;
  std::string missing_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_LOCK_H_
