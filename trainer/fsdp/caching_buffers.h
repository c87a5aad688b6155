// `buffers: caching`, the paper's way: all device memory of a rank comes from a caching allocator,
// at the time of use. What a unit has only while it is in use is taken for the stream that fills it
// and freed behind its last use on others; activations belong to the compute stream.
// Tests: tests/trainer/engine/paper_runtime_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_CACHING_BUFFERS_H_
#define FSDP_TRAIN_TRAINER_FSDP_CACHING_BUFFERS_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/memory_ceiling.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/runtime/caching_allocator.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {

class CachingBuffers final : public PhasedAllocator {
 public:
  // `limit`: bytes of device memory, at most; allocations throw MemoryError above it. Where the
  // device is the CPU, or simulates it, host memory is the same memory, and so counts against the
  // limit and in the peaks. `spill`: what is allocated of a disk; only simulated devices have
  // addresses for that. `ceiling`: what is reserved, and pooled, is held against it; nothing is
  // given back because of it.
  explicit CachingBuffers(Device& device, std::optional<int64_t> limit = std::nullopt,
                          std::unique_ptr<SpillMemory> spill = nullptr,
                          const MemoryCeiling& ceiling = {});

  // For the compute stream; other memory than the device's is pooled by size.
  void Begin(Phase) override {}
  std::byte* Allocate(int64_t bytes, MemoryUse use) override;
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;
  CachingBuffers* caching() override { return this; }
  SpillMemory* spill() override { return spill_.get(); }

  // By StreamId, null where there is none. Before memory is taken for them, and with an empty list
  // before they end.
  void Attach(const std::vector<std::unique_ptr<Stream>>& streams);
  // Bytes, of kind kUnsharded, for what `stream` is about to enqueue. Empty for none.
  View Take(int64_t bytes, StreamId stream);
  // Which `users` have used besides, with what they have enqueued so far. Nothing for none.
  void Release(const View& bytes, std::initializer_list<StreamId> users = {});

  const CachingStatistics& statistics() const { return caching_.statistics(); }
  // Since the last call, or the beginning.
  CachingStatistics TakePeaks();
  // What has been in use so far: of the device's memory what was reserved (of the CPU's so much
  // that all places come to the peak), of other places what was pooled, and of each kind the most
  // that there was of it at a time.
  MemoryPlan Used() const;

 private:
  void Count(int64_t bytes, MemoryUse use);
  void CheckCeiling() const;
  int64_t Pooled() const;  // Of host memory.

  const bool one_memory_;  // Of the device and the host.
  CachingAllocator caching_;
  CachingStatistics taken_;  // All that TakePeaks() has returned.
  const std::unique_ptr<SpillMemory> spill_;
  const MemoryCeiling ceiling_;
  PooledAllocator pooled_;
  struct Bytes {
    int64_t now = 0, peak = 0;
  };
  std::array<std::array<Bytes, kNumMemoryKinds>, kNumMemoryPlaces> kinds_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_CACHING_BUFFERS_H_
