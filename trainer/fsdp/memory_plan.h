// Memory planned by offsets. One step runs on the sim device while a PlanRecorder writes down every
// allocation and how long it lives; the blocks are packed into an arena for each place of memory;
// the real run's k-th allocation takes the k-th offset, and aborts if its size differs. So
// allocated = active = reserved = planned, addresses repeat from step to step, and nothing
// fragments.
#ifndef FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_
#define FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/runtime/allocator.h"
#include "trainer/runtime/caching_allocator.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

// Limits of memory above which a plan is not wanted: planning then stops at once.
struct MemoryCeiling {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t device = kNone;
  int64_t host = kNone;  // All places of host memory together. A disk has no ceiling.
  int64_t all = kNone;   // Device and host, where they are one memory.

  // Throws MemoryError where so many bytes at a time exceed a limit.
  void Check(int64_t on_device, int64_t on_host) const {
    if (on_device > device || on_host > host || on_device + on_host > all) {
      throw MemoryError("does not fit: a step takes more than is wanted");
    }
  }
};

// kPersistent: memory that lives as long as the run. kUpdate: memory of a step's updates, where
// nothing stays from one step to the next. The other phases are the memory that one micro-batch
// allocates and frees. They and the updates follow one another on one stream, so they share their
// place in the arena.
enum class Phase { kPersistent, kTrain, kEval, kGenerate, kUpdate };
constexpr int kNumPhases = 5;

// Bytes that a block takes of its place: up to where the next one may begin.
int64_t AlignedBytes(int64_t bytes, MemoryUse use);

struct MemoryPlan {
  struct Block {
    int64_t bytes = 0;   // As requested.
    int64_t offset = 0;  // Into the arena of its place.
    MemoryUse use = MemoryKind::kActivations;
  };
  std::array<std::vector<Block>, kNumPhases> blocks;  // In order of allocation.
  std::array<int64_t, kNumMemoryPlaces> arenas{};     // Each place's bytes.
  // Bytes of each place, by kind; kActivations includes the memory that the phases share.
  std::array<std::array<int64_t, kNumMemoryKinds>, kNumMemoryPlaces> kinds{};

  // Set where device memory is not planned, but was taken from a caching allocator while steps ran
  // in simulated time. There are then no blocks, the device's arena is the reserved memory, and
  // each kind has its peak.
  std::optional<CachingStatistics> caching = {};

  // threads: CPU threads of the run's streams. multiplying: those that multiply matrices. No place
  // counts their stacks and packing memory (ops/cpu/gemm/gemm.h).
  int threads = 0, multiplying = 0;

  int64_t bytes() const;  // All places but the disk.
  int64_t bytes(MemoryPlace place) const { return arenas[static_cast<int>(place)]; }
  int64_t bytes(MemoryKind kind, MemoryPlace place) const {
    return kinds[static_cast<int>(place)][static_cast<int>(kind)];
  }
  int64_t bytes(MemoryKind kind) const;  // All places but the disk.
};

class CachingBuffers;

class PhasedAllocator : public Allocator {
 public:
  // Starts a phase, or the same one again: its k-th allocation must then be as before. All memory
  // of the last phase, unless persistent, must have been freed.
  virtual void Begin(Phase phase) = 0;
  // In phase kPersistent: memory of kUpdate, to be had until the run ends, as persistent memory.
  // Its first use in a step is behind all micro-batches on the compute stream, and that stream
  // waits for its last one before the step ends. A planned arena has all of it where micro-batches
  // have theirs; other allocators have it apart.
  virtual std::byte* AllocateForUpdates(int64_t bytes, MemoryUse use) {
    return Allocate(bytes, use);
  }
  // Not null: all device memory comes from a caching allocator (caching_buffers.h), and units take
  // theirs when they are used.
  virtual CachingBuffers* caching() { return nullptr; }
  // The memory whose addresses blocks on the disk have. Null where there are no such blocks, or
  // their addresses are only numbers.
  virtual SpillMemory* spill() { return nullptr; }
};

// Gives out addresses that are only numbers, so the device must be a simulated one.
class PlanRecorder final : public PhasedAllocator {
 public:
  // Compares the bytes that are there at a time with the ceiling: a plan cannot take less.
  explicit PlanRecorder(const MemoryCeiling& ceiling = {}) : ceiling_(ceiling) {}

  void Begin(Phase phase) override;
  // Throws MemoryError above the ceiling, and where all requests so far add up to more than 2^62
  // bytes.
  std::byte* Allocate(int64_t bytes, MemoryUse use) override;
  std::byte* AllocateForUpdates(int64_t bytes, MemoryUse use) override;
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;

  MemoryPlan Finish() const;

 private:
  struct Record {
    int64_t bytes = 0;
    MemoryUse use = MemoryKind::kActivations;
    int64_t born = 0, died = -1;  // Ticks: allocations and frees, counted. -1: lives on.
  };
  uintptr_t NewAddress(int64_t bytes, MemoryUse use);
  void CheckCeiling() const;

  const MemoryCeiling ceiling_;
  struct Bytes {
    void Count(int64_t bytes, MemoryUse use);
    int64_t on_device = 0, on_host = 0;
  };
  Bytes now_, updates_;  // That are there now, but for those of updates; and these.
  std::array<std::vector<Record>, kNumPhases> records_;
  Phase phase_ = Phase::kPersistent;
  bool again_ = false;  // The phase was recorded before.
  size_t next_ = 0;
  int64_t ticks_ = 0;
  int64_t live_ = 0;                             // Blocks of this phase that are not freed.
  uintptr_t next_address_ = uintptr_t{1} << 44;  // Never given out twice: no two blocks overlap.
  std::map<uintptr_t, std::pair<int, size_t>> blocks_;  // Phase and index, while allocated.
};

class PlannedAllocator final : public PhasedAllocator {
 public:
  // Takes the whole arena of each place from the device. `spill`: the disk's arena; only simulated
  // devices have addresses for a disk without it. Throws MemoryError.
  PlannedAllocator(Device& device, MemoryPlan plan, std::unique_ptr<SpillMemory> spill = nullptr);

  void Begin(Phase phase) override;
  std::byte* Allocate(int64_t bytes, MemoryUse use) override { return Take(phase_, bytes, use); }
  std::byte* AllocateForUpdates(int64_t bytes, MemoryUse use) override {
    return Take(Phase::kUpdate, bytes, use);
  }
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;

  SpillMemory* spill() override { return spill_.get(); }

  const MemoryPlan& plan() const { return plan_; }

 private:
  std::byte* Take(Phase phase, int64_t bytes, MemoryUse use);

  MemoryPlan plan_;
  std::unique_ptr<SpillMemory> spill_;
  std::array<Buffer, kNumMemoryPlaces> arenas_;
  Phase phase_ = Phase::kPersistent;
  std::array<size_t, kNumPhases> next_{};
};

// Finds offsets for blocks that live in [born, died): large ones first, each at the lowest place
// that no block alive at the same time has. Offsets are multiples of `alignment` bytes. Returns the
// end of the highest block. The work is nearly linear in blocks that repeat layer by layer; `looks`
// gets the number of blocks and rows that it has looked at.
struct Lifetime {
  int64_t bytes = 0;
  int64_t born = 0, died = 0;
};
int64_t PackBlocks(const std::vector<Lifetime>& blocks, std::vector<int64_t>& offsets,
                   int64_t alignment = 64, int64_t* looks = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_
