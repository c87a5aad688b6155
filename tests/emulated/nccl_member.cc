#include "tests/emulated/nccl_member.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>

#include "tests/emulated/cudart.h"
#include "trainer/comm/gate.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/core/dtype.h"
#include "trainer/core/unique_fd.h"

namespace fsdp::fake_nccl {

struct Member::Shared {
  struct Slot {
    std::atomic<int> device;  // 1 + its GPU; 0: it has not joined.
    std::atomic<int> pid;
    std::atomic<bool> ends;
    std::atomic<int64_t> called;  // Collectives, by its host.
    Call call;
  };
  Gate gate;
  std::atomic<int> joined;
  Slot slots[kMaxRanks];
};

namespace {

constexpr const char* kNames[] = {"AllGather", "ReduceScatter", "AllReduce",
                                  "AlltoAll",  "Broadcast",     "a group of Send and Recv"};
constexpr size_t kSlotBytes = 64 << 10;  // The data of one rank for one other.
constexpr size_t kHeader = 64 << 10;
constexpr size_t kBytes = kHeader + kMaxRanks * kMaxRanks * kSlotBytes;

void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

template <typename T>
void AddUp(std::byte* out, const std::vector<const std::byte*>& from, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    T sum = reinterpret_cast<const T*>(from.back())[i];
    for (size_t r = from.size() - 1; r-- > 0;) {
      const T next = reinterpret_cast<const T*>(from[r])[i];
      if constexpr (std::is_integral_v<T>) {
        sum = static_cast<T>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(next));
      } else {
        sum = T(static_cast<float>(sum) + static_cast<float>(next));
      }
    }
    reinterpret_cast<T*>(out)[i] = sum;
  }
}

void AddUp(ncclDataType_t type, std::byte* out, const std::vector<const std::byte*>& from,
           size_t bytes) {
  const size_t n = bytes / SizeOf(type);
  switch (type) {
    case ncclFloat32:
      return AddUp<float>(out, from, n);
    case ncclFloat16:
      return AddUp<Float16>(out, from, n);
    case ncclBfloat16:
      return AddUp<BFloat16>(out, from, n);
    case ncclInt32:
      return AddUp<int32_t>(out, from, n);
    case ncclInt64:
      return AddUp<int64_t>(out, from, n);
    case ncclUint8:
      return AddUp<uint8_t>(out, from, n);
  }
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
      return 8;
    default:
      return 4;
  }
}

int MakeMemory() {
  const int fd = memfd_create("fake_nccl", MFD_CLOEXEC);
  return fd >= 0 && ftruncate(fd, kBytes) == 0 ? fd : -1;
}

Member::~Member() {
  if (memory_ != nullptr) munmap(memory_, kBytes);
}

void Member::Join(int pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (file.get() < 0 || memory == MAP_FAILED) {
    return Fail(ncclSystemError, "cannot reach the root of the unique id");
  }
  memory_ = static_cast<std::byte*>(memory);
  Shared& shared = this->shared();
  shared.slots[rank].pid = getpid();
  shared.slots[rank].device = device_ + 1;
  ++shared.joined;
  while (shared.joined < size && !aborted) Nap();
  if (aborted) return;
  // From 2.30.3 on two ranks may have one GPU where the user says so (src/init.cc).
  const char* const enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool two = enabled != nullptr && std::atoi(enabled) == 1 && TheEmulatedGpus().nccl >= 23003;
  for (int a = 0; a < size; ++a) {
    int same = 0;
    for (int b = 0; b < a; ++b) {
      if (shared.slots[a].device != shared.slots[b].device || (two && ++same < 2)) continue;
      return Fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) +
                                        " and rank " + std::to_string(a) + " both on CUDA device " +
                                        std::to_string(shared.slots[a].device - 1));
    }
  }
  if (rank == 0 && pid == getpid()) close(fd);
  state = ncclSuccess;
}

void Member::EndWithPeers() {
  if (memory_ == nullptr) return;
  Shared& shared = this->shared();
  shared.slots[rank].ends = true;
  const auto over = [&](const Shared::Slot& slot) {
    return slot.ends || slot.device == 0 || PeerProcess(slot.pid).HasEnded();
  };
  while (!std::all_of(shared.slots, shared.slots + size, over)) Nap();
}

void Member::Called(int64_t turn) { shared().slots[rank].called = turn + 1; }
bool Member::AllHaveCalled(int64_t turn) {
  Shared& shared = this->shared();
  return std::all_of(shared.slots, shared.slots + size,
                     [turn](const Shared::Slot& slot) { return slot.called > turn; });
}

void Member::Run(const Work& work, int64_t turn) {
  while (turn_ != turn) {
    if (Over()) return;
    Nap();
  }
  if (RunInTurn(work, turn)) turn_ = turn + 1;
}

void Member::Fail(ncclResult_t error, const std::string& why) {
  std::lock_guard lock(mutex_);
  why_ = why;
  state = error;
}
const char* Member::why() {
  std::lock_guard lock(mutex_);
  return why_.c_str();
}

std::byte* Member::Slot(int from, int to) {
  return memory_ + kHeader + (from * kMaxRanks + to) * kSlotBytes;
}
bool Member::Over() const { return aborted || cudaPeekAtLastError() != cudaSuccess; }
void Member::BeStuck() const {
  while (!Over()) Nap();
}

bool Member::Meet() {
  Gate::Ticket ticket;
  Gate& gate = shared().gate;
  if (Over()) return false;
  if (gate.Arrive(size, false, &ticket) == Gate::Outcome::kPassed) return true;
  while (gate.Wait(ticket, 200, std::chrono::milliseconds(1)) != Gate::Outcome::kPassed) {
    if (Over()) return false;
  }
  return true;
}

bool Member::RunInTurn(const Work& work, int64_t turn) {
  const EmulatedGpus gpus = TheEmulatedGpus();
  const bool odd = rank == size - 1;
  if (odd && turn + 1 == gpus.nccl_fails) Fail(ncclSystemError, "a cable is loose");
  if (odd && (turn + 1 == gpus.nccl_fails || turn + 1 == gpus.nccl_hangs)) {
    BeStuck();
    return false;
  }
  Shared& shared = this->shared();
  shared.slots[rank].call = work.call;
  if (!Meet()) return false;
  if (!Agree()) {
    BeStuck();
    return false;
  }
  size_t most = 0;
  for (const Work::Part& part : work.to) most = std::max(most, part.bytes);
  for (const Work::Part& part : work.from) most = std::max(most, part.bytes);
  size_t rounds = (most + kSlotBytes - 1) / kSlotBytes;
  for (int r = 0; r < size; ++r) {  // The groups of other ranks may be longer.
    for (int to = 0; to < size; ++to) {
      rounds = std::max(rounds, (shared.slots[r].call.sends[to] + kSlotBytes - 1) / kSlotBytes);
    }
  }
  if (!Meet()) return false;  // All have read what all do.
  for (size_t round = 0; round < rounds; ++round) {
    if (!Exchange(work, round * kSlotBytes)) return false;
  }
  if (odd && turn + 1 == gpus.nccl_strands) {
    BeStuck();
    return false;
  }
  return true;
}

bool Member::Agree() {
  Shared& shared = this->shared();
  for (int r = 0; r < size; ++r) {
    const Call &mine = shared.slots[0].call, &theirs = shared.slots[r].call;
    bool alike = mine.kind == theirs.kind;
    if (mine.kind != Kind::kGroup) {
      alike = mine == theirs;
    } else {
      for (int other = 0; other < size; ++other) {
        alike = alike && theirs.sends[other] == shared.slots[other].call.receives[r];
      }
    }
    if (alike) continue;
    Fail(ncclInvalidUsage, std::string("rank 0 calls ") + kNames[static_cast<int>(mine.kind)] +
                               " of " + std::to_string(mine.count) + ", rank " + std::to_string(r) +
                               " " + kNames[static_cast<int>(theirs.kind)] + " of " +
                               std::to_string(theirs.count));
    return false;
  }
  return true;
}

bool Member::Exchange(const Work& work, size_t begin) {
  const auto count = [begin](const Work::Part& part) {
    return part.bytes > begin ? std::min(kSlotBytes, part.bytes - begin) : 0;
  };
  for (int to = 0; to < size; ++to) {
    const Work::Part& part = work.to[to];
    if (count(part) > 0) std::memcpy(Slot(rank, to), part.data + begin, count(part));
  }
  if (!Meet()) return false;
  if (work.sums) {
    // As a ring adds, from the rank behind a slice's owner to the owner; AddUp() begins at the end.
    const int last = work.call.kind == Kind::kReduceScatter ? rank : 0;
    std::vector<const std::byte*> slots;
    for (int r = 0; r < size; ++r) slots.push_back(Slot((last + size - r) % size, rank));
    AddUp(work.call.type, work.from[0].data + begin, slots, count(work.from[0]));
  } else {
    for (int from = 0; from < size; ++from) {
      const Work::Part& part = work.from[from];
      if (count(part) > 0) std::memcpy(part.data + begin, Slot(from, rank), count(part));
    }
  }
  return Meet();
}

}  // namespace fsdp::fake_nccl
