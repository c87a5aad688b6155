// Memory planned by offsets. One step runs on the sim device while a PlanRecorder writes down every
// allocation and how long it lives; the blocks are packed into an arena for each place of memory;
// the real run's k-th allocation takes the k-th offset, and aborts if its size differs. So
// allocated = active = reserved = planned, addresses repeat from step to step, and nothing
// fragments.
#ifndef FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_
#define FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/fsdp/memory_ceiling.h"
#include "trainer/runtime/allocator.h"
#include "trainer/runtime/caching_allocator.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {

// kPersistent: what lives as long as the run. The others are what one micro-batch allocates and
// frees; they follow one another on one stream, so they share their place in the arena.
enum class Phase { kPersistent, kTrain, kEval, kGenerate };
constexpr int kNumPhases = 4;

// What a block takes of its place: up to where the next one may begin.
int64_t AlignedBytes(int64_t bytes, MemoryUse use);

struct MemoryPlan {
  struct Block {
    int64_t bytes = 0;   // As asked for.
    int64_t offset = 0;  // Into the arena of its place.
    MemoryUse use = MemoryKind::kActivations;
  };
  std::array<std::vector<Block>, kNumPhases> blocks;  // In order of allocation.
  std::array<int64_t, kNumMemoryPlaces> arenas{};     // Bytes of each place's.
  // Of each place, by kind; kActivations includes what the phases share.
  std::array<std::array<int64_t, kNumMemoryKinds>, kNumMemoryPlaces> kinds{};

  // Where device memory is not planned, but was taken from a caching allocator while steps ran in
  // simulated time: then there are no blocks, the device's arena is what was reserved, and of each
  // kind it is known how much there was at most.
  std::optional<CachingStatistics> caching = {};

  // CPU threads of the run's streams, whose stacks are in no place; and those of them that multiply
  // matrices, whose packing memory (ops/cpu/gemm.h) is in none either.
  int threads = 0, multiplying = 0;

  int64_t bytes() const;  // Of all places but the disk.
  int64_t bytes(MemoryPlace place) const { return arenas[static_cast<int>(place)]; }
  int64_t bytes(MemoryKind kind, MemoryPlace place) const {
    return kinds[static_cast<int>(place)][static_cast<int>(kind)];
  }
  int64_t bytes(MemoryKind kind) const;  // Likewise.
};

class CachingBuffers;

class PhasedAllocator : public Allocator {
 public:
  // Starts a phase, or the same one again: its k-th allocation is then expected to be as before.
  // What the last phase allocated, unless persistent, has been freed.
  virtual void Begin(Phase phase) = 0;
  // Not null: all device memory comes from a caching allocator (caching_buffers.h), and units take
  // theirs from it when they are used.
  virtual CachingBuffers* caching() { return nullptr; }
  // Whose addresses blocks on the disk have. Null where there are none, or they are only numbers.
  virtual SpillMemory* spill() { return nullptr; }
};

// Gives out addresses that are only numbers, so the device must be a simulated one.
class PlanRecorder final : public PhasedAllocator {
 public:
  // The plan cannot take less than what is there at a time, which is held against the ceiling.
  explicit PlanRecorder(const MemoryCeiling& ceiling = {}) : ceiling_(ceiling) {}

  void Begin(Phase phase) override;
  // Throws MemoryError above the ceiling, and where all that was ever asked for comes to more than
  // 2^62 bytes.
  std::byte* Allocate(int64_t bytes, MemoryUse use) override;
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;

  MemoryPlan Finish() const;

 private:
  struct Record {
    int64_t bytes = 0;
    MemoryUse use = MemoryKind::kActivations;
    int64_t born = 0, died = -1;  // Ticks: allocations and frees, counted. -1: lives on.
  };
  void Count(int64_t bytes, MemoryUse use);

  const MemoryCeiling ceiling_;
  int64_t on_device_ = 0, on_host_ = 0;  // Bytes that are there now.
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
  // Takes the whole arena of each place from the device; `spill` is the disk's, which only
  // simulated devices have addresses for. Throws MemoryError.
  PlannedAllocator(Device& device, MemoryPlan plan, std::unique_ptr<SpillMemory> spill = nullptr);

  void Begin(Phase phase) override;
  std::byte* Allocate(int64_t bytes, MemoryUse use) override;
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;

  SpillMemory* spill() override { return spill_.get(); }

  const MemoryPlan& plan() const { return plan_; }

 private:
  MemoryPlan plan_;
  std::unique_ptr<SpillMemory> spill_;
  std::array<Buffer, kNumMemoryPlaces> arenas_;
  Phase phase_ = Phase::kPersistent;
  size_t next_ = 0;
};

// Offsets for blocks that live in [born, died): large ones first, each at the lowest place that no
// block alive at the same time has. Multiples of `alignment` bytes. Returns the end of the highest.
struct Lifetime {
  int64_t bytes = 0;
  int64_t born = 0, died = 0;
};
int64_t PackBlocks(const std::vector<Lifetime>& blocks, std::vector<int64_t>& offsets,
                   int64_t alignment = 64);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MEMORY_PLAN_H_
