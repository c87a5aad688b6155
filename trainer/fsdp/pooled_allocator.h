// Memory for generation, which has no plan because its shapes change from pass to pass, and host
// memory beside a caching allocator's.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_
#define FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

// Freed blocks are kept for requests of their size. They never go back to the device, whose streams
// may still use them. Throws MemoryError.
class PooledAllocator final : public PhasedAllocator {
 public:
  // `spill`: memory for blocks on a disk, which are FSDP_CHECKed to fit; it outlives the allocator.
  // Null: the device, a simulated one, gives out their addresses.
  explicit PooledAllocator(Device& device, SpillMemory* spill = nullptr)
      : device_(device), spill_(spill) {}

  void Begin(Phase) override {}
  std::byte* Allocate(int64_t bytes, MemoryUse use) override {
    std::vector<std::byte*>& free = free_[{use.place, bytes}];
    if (free.empty()) {
      std::byte* const data = Cut(bytes, use);
      free.reserve(++count_);  // Giving back allocates nothing: Free() must not throw.
      return data;
    }
    std::byte* const data = free.back();
    free.pop_back();
    return data;
  }
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override {
    free_.find({use.place, bytes})->second.push_back(data);
  }
  SpillMemory* spill() override { return spill_; }

  // Bytes that Allocate() would add to bytes(use.place).
  int64_t Missing(int64_t bytes, MemoryUse use) const {
    const auto free = free_.find({use.place, bytes});
    return free == free_.end() || free->second.empty() ? AlignedBytes(bytes, use) : 0;
  }
  // Bytes that all blocks so far, free ones included, take of the place.
  int64_t bytes(MemoryPlace place) const { return taken_[static_cast<int>(place)]; }

 private:
  std::byte* Cut(int64_t bytes, MemoryUse use) {
    int64_t& taken = taken_[static_cast<int>(use.place)];
    const int64_t begin = std::exchange(taken, taken + AlignedBytes(bytes, use));
    if (use.place == MemoryPlace::kDisk && spill_) {
      FSDP_CHECK_LE(taken, spill_->bytes());
      return spill_->data() + begin;
    }
    blocks_.push_back(device_.Allocate(bytes, use.place));
    return blocks_.back().data();
  }

  Device& device_;
  SpillMemory* const spill_;
  std::vector<Buffer> blocks_;
  size_t count_ = 0;  // Blocks, those of a disk included.
  std::array<int64_t, kNumMemoryPlaces> taken_{};
  std::map<std::pair<MemoryPlace, int64_t>, std::vector<std::byte*>> free_;  // By place and size.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_
