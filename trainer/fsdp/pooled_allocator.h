// Memory for work that has no plan because its shapes change from pass to pass: generation.
#ifndef FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_
#define FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_

#include <map>
#include <utility>
#include <vector>

#include "trainer/fsdp/memory_plan.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// Freed blocks are kept and given out again for requests of their size: never back to the device,
// whose streams may still use them. Throws MemoryError.
class PooledAllocator final : public PhasedAllocator {
 public:
  explicit PooledAllocator(Device& device) : device_(device) {}

  void Begin(Phase) override {}
  std::byte* Allocate(int64_t bytes, MemoryUse use) override {
    std::vector<std::byte*>& free = free_[{use.place, bytes}];
    if (free.empty()) {
      blocks_.push_back(device_.Allocate(bytes, use.place));
      free.reserve(blocks_.size());  // Giving back allocates nothing: Free() must not throw.
      return blocks_.back().data();
    }
    std::byte* const data = free.back();
    free.pop_back();
    return data;
  }
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override {
    free_.find({use.place, bytes})->second.push_back(data);
  }

 private:
  Device& device_;
  std::vector<Buffer> blocks_;
  std::map<std::pair<MemoryPlace, int64_t>, std::vector<std::byte*>> free_;  // By place and size.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_POOLED_ALLOCATOR_H_
