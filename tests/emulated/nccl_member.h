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

// What ranks compare.
struct Call {
  Kind kind = Kind::kGroup;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int root = 0;
  size_t sends[kMaxRanks] = {}, receives[kMaxRanks] = {};  // Bytes, by peer: of a group.

  bool operator==(const Call&) const = default;
};

// What one rank does.
struct Work {
  struct Part {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Call call;
  std::vector<Part> to, from;  // By peer.
  bool sums = false;           // What comes is added up into from[0].
};

size_t SizeOf(ncclDataType_t type);

// A file of zeros for Member::Join(), of this process; -1: none.
int MakeMemory();

// Kernels that are queued keep it.
class Member {
 public:
  Member(int rank, int size, int device) : rank(rank), size(size), device_(device) {}
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // On a thread of its own: until all have joined, or it is aborted. The file is that of a process.
  void Join(int pid, int fd);
  // This rank's host has made its call `turn`, from 0; whether all have that many.
  void Called(int64_t turn);
  bool AllHaveCalled(int64_t turn);
  // On a stream's thread. `turn`: the number of the collective on this rank.
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
  // All ranks; false where that is over.
  bool Meet();
  bool RunInTurn(const Work& work, int64_t turn);
  bool Agree();
  bool Exchange(const Work& work, size_t begin);

  const int device_;
  std::byte* memory_ = nullptr;
  std::atomic<int64_t> turn_{0};
  std::mutex mutex_;  // Guards the text.
  std::string why_;
};

}  // namespace fsdp::fake_nccl

#endif  // FSDP_TRAIN_TESTS_EMULATED_NCCL_MEMBER_H_
