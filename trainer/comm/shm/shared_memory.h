// Memory that processes of one host share, and how they watch each other.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_
#define FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// `bytes` of a file, shared, readable and writable.
class SharedMapping {
 public:
  SharedMapping(int fd, int64_t bytes);  // Throws DeviceError.
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

// An anonymous memfd of zeros, not limited by the size of /dev/shm, gone with the last process that
// has or maps it. All of it is committed here: later there would be no error but SIGBUS. Throws
// DeviceError.
UniqueFd MakeSharedMemory(int64_t bytes);

// The same memory, from the process that made it, by /proc. `owner` is for messages ("rank 0").
// Throws DeviceError.
UniqueFd OpenSharedMemory(int pid, int remote_fd, int64_t bytes, const std::string& owner);

// A text for the meaning of /proc/<pid> here: processes with the same text see the same processes
// there (unless two machines say they are one: clones of a running one do). No spaces.
std::string ProcessSpace();

// Tells a peer's process from any other, while it runs and after.
class PeerProcess {
 public:
  PeerProcess() = default;
  explicit PeerProcess(int pid);  // Throws DeviceError.
  int pid() const { return pid_; }
  bool HasEnded() const;  // A zombie has.

 private:
  int pid_ = 0;
  UniqueFd pidfd_;  // -1: it had ended before we looked.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_
