// One rank of a communicator of the fake NCCL: see nccl.cc.
#ifndef FSDP_TRAIN_TESTS_EMULATED_NCCL_MEMBER_H_
#define FSDP_TRAIN_TESTS_EMULATED_NCCL_MEMBER_H_

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp::fake_nccl {

constexpr int kMaxRanks = 16;

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kAlltoAll, kBroadcast, kGroup };

// The properties of a call that ranks compare.
struct Call {
  Kind kind = Kind::kGroup;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int root = 0;
  size_t sends[kMaxRanks] = {}, receives[kMaxRanks] = {};  // Bytes, by peer, of a group.

  bool operator==(const Call&) const = default;
};

// The work of one rank in a call.
struct Work {
  struct Part {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Call call;
  std::vector<Part> to, from;  // By peer.
  bool sums = false;           // The received parts are added up into from[0].
};

size_t SizeOf(ncclDataType_t type);

// Creates a file of zeros of this process, for Member::Join(); -1: none.
int MakeMemory();

// Kernels that are queued keep the member alive.
class Member {
 public:
  Member(int rank, int size, int device) : rank(rank), size(size), device_(device) {}
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Runs on a thread of its own, until all have joined or it is aborted. The file belongs to
  // process `pid`.
  void Join(int pid, int fd);
  // Blocks until all who have joined end the communicator, or their processes have ended.
  void EndWithPeers();
  // Called(): this rank's host has made its call `turn`, from 0. AllHaveCalled(): all hosts have.
  void Called(int64_t turn);
  bool AllHaveCalled(int64_t turn);
  // Runs on a stream's thread. `turn`: the number of the collective on this rank.
  void Run(const Work& work, int64_t turn);

  void Fail(ncclResult_t error, const std::string& why);
  const char* why();

  const int rank, size;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<int64_t> in_flight{0};  // On streams.

 private:
  struct Shared;

  Shared& shared() { return *reinterpret_cast<Shared*>(memory_); }
  std::byte* Slot(int from, int to);
  bool Over() const;
  void BeStuck() const;
  // Waits for all ranks. False where the group has failed.
  bool Meet();
  bool RunInTurn(const Work& work, int64_t turn);
  bool Agree();
  bool Exchange(const Work& work, size_t begin);

  const int device_;
  std::byte* memory_ = nullptr;
  std::atomic<int64_t> turn_{0};
  std::mutex mutex_;  // Guards why_.
  std::string why_;
};

}  // namespace fsdp::fake_nccl

#endif  // FSDP_TRAIN_TESTS_EMULATED_NCCL_MEMBER_H_
