// `buffers: caching`, the paper's way: all device memory of a rank comes from a caching allocator,
// at the time of use. Memory that a unit needs only while it is in use is taken for the stream that
// fills it and freed behind its last use on others. Activations belong to the compute stream.
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
#include "trainer/fsdp/action.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/runtime/caching_allocator.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

class CachingBuffers final : public PhasedAllocator {
 public:
  // `limit`: the most bytes of device memory; allocations throw MemoryError above it. On a CPU
  // device, real or simulated, host memory is the same memory: it counts against the limit and in
  // the peaks. `spill`: the source of disk memory; a simulated device has addresses without it.
  // `ceiling`: checked against reserved and pooled bytes; it makes nothing go back to the device.
  explicit CachingBuffers(Device& device, std::optional<int64_t> limit = std::nullopt,
                          std::unique_ptr<SpillMemory> spill = nullptr,
                          const MemoryCeiling& ceiling = {});

  // Device memory is for the compute stream; other memory is pooled by size.
  void Begin(Phase) override {}
  std::byte* Allocate(int64_t bytes, MemoryUse use) override;
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override;
  CachingBuffers* caching() override { return this; }
  SpillMemory* spill() override { return spill_.get(); }

  // Attaches streams, by StreamId, null where there is none. Call it before memory is taken for
  // them, and with an empty list before they end.
  void Attach(const std::vector<std::unique_ptr<Stream>>& streams);
  // Bytes of kind kUnsharded for the next work of `stream`. Empty for 0 bytes.
  View Take(int64_t bytes, StreamId stream);
  // Gives Take()'s bytes back, which the work that `users` have enqueued so far has used, too. Does
  // nothing for an empty view.
  void Release(const View& bytes, std::initializer_list<StreamId> users = {});

  const CachingStatistics& statistics() const { return caching_.statistics(); }
  // Statistics since the last call, or the beginning.
  CachingStatistics TakePeaks();
  // The memory in use so far. Device memory counts what was reserved, or on a CPU as much as brings
  // all places to the peak. Other places count what was pooled. Each kind counts its peak.
  MemoryPlan Used() const;

 private:
  void Count(int64_t bytes, MemoryUse use);
  void CheckCeiling() const;
  int64_t Pooled() const;  // Host memory.

  const bool one_memory_;  // Device and host share it.
  CachingAllocator caching_;
  CachingStatistics taken_;  // The sum of all that TakePeaks() has returned.
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
