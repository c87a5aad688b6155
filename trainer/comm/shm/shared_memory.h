// Memory that processes of one host share, how they come to it or to one error that all of them
// throw, and how they watch each other.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_
#define FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"
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

// A rank's message to the others. Errors travel with the exchanges, so that every rank fails with
// them and none waits in vain.
struct Card {
  int pid = 0;
  int fd = -1;        // That of memory which the rank has made.
  std::string words;  // Further words, without a line break.
  std::string error;  // ErrorOf(); empty: none.

  std::string ToString() const;
  static Card Parse(const std::string& text);
};
Card MyCard();  // With this process's pid.

// The ConfigError, CommError or DeviceError that the function throws, with its kind; empty: it
// throws nothing.
std::string ErrorOf(const std::function<void()>& function);

// Everybody's cards, by rank of the group. Throws the first rank's error, on every rank: `what`
// names the group ("[shm] gather").
std::vector<Card> ExchangeCards(Store& store, const std::string& key, const std::string& what,
                                const RankGroup& group, const Card& mine);

// Memory of some ranks of one host, and their processes.
struct LocalMemory {
  std::unique_ptr<SharedMapping> mapping;
  std::vector<PeerProcess> peers;  // By place in `locals`; nobody for this rank itself.
};
// `locals`: those ranks of the group, this one among them. The first of them has made `bytes`
// bytes, and has them as `made`. Throws DeviceError.
LocalMemory ReachMemory(const RankGroup& group, const std::vector<int>& locals,
                        const std::vector<Card>& cards, const UniqueFd& made, int64_t bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SHM_SHARED_MEMORY_H_
