// Device memory that units have only while they are in use, and scratch memory of single actions.
// It is planned, as slots and places of their own, or taken from a caching allocator at the time of
// use. A cast for the wire runs on the collective's stream: one scratch buffer serves one
// collective after the other, and the compute stream's slots know nothing of it.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_UNIT_MEMORY_H_
#define FSDP_TRAIN_TRAINER_FSDP_UNIT_MEMORY_H_

#include <cstdint>
#include <memory>

#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/storage.h"

namespace fsdp {

enum class Scratch {
  kGatherWire,      // A value as it travels, if in another form.
  kWire,            // A gradient as it travels, if in another form.
  kArrived,         // Gradients that arrive and are summed afterwards.
  kInsideSum,       // The sum of a host's gradients, between two hops.
  kReplicaWire,     // A shard, on its way between replicas.
  kReplicaArrived,  // Shards that arrive and are summed afterwards.
  kFetch,           // For a cast of data from the host.
  kLeaving,         // Pinned: activations on their way to a disk.
  kComing           // Pinned: activations on their way back.
};
constexpr int kNumScratch = 9;

// Calls return an empty view where there is no memory of that kind.
class UnitMemory {
 public:
  virtual ~UnitMemory() = default;
  // Memory for a use that action `index` of the schedule of `mode` takes on `stream`.
  virtual View Take(const Use& use, int64_t bytes, Mode mode, size_t index, StreamId stream) = 0;
  // The work that `user` has enqueued so far has used the memory, too.
  virtual void Give(const View& bytes, StreamId user) = 0;
  // At least so many bytes, or as many as there are, for work enqueued on `stream` until Return().
  virtual View Borrow(Scratch what, int64_t bytes, StreamId stream) = 0;
  virtual void Return(Scratch what, const View& bytes) = 0;
  // Another schedule takes the place of this mode's, with the same slots.
  virtual void Replace(Mode mode, const Schedule& schedule) = 0;
};

// Memory of the phase that has begun; an empty view where there are no elements.
View NewPersistent(PhasedAllocator& allocator, int64_t elements, MemoryUse use, DType dtype);
View NewBytes(PhasedAllocator& allocator, int64_t bytes, MemoryUse use);

// Takes memory from the allocator. `eval` uses slots of `train`. `pieces`: bytes of kLeaving and
// kComing each; 0: nothing goes between the device and a disk. Keeps references.
std::unique_ptr<UnitMemory> MakeUnitMemory(PhasedAllocator& allocator, const Layout& layout,
                                           const Storage& storage, const Schedule& train,
                                           const Schedule& eval, int64_t pieces);

class ScratchBytes {
 public:
  ScratchBytes(UnitMemory& memory, Scratch what, int64_t bytes, StreamId stream)
      : memory_(memory), what_(what), view_(memory.Borrow(what, bytes, stream)) {}
  ~ScratchBytes() { memory_.Return(what_, view_); }
  ScratchBytes(const ScratchBytes&) = delete;
  ScratchBytes& operator=(const ScratchBytes&) = delete;

  const View& view() const { return view_; }

 private:
  UnitMemory& memory_;
  const Scratch what_;
  const View view_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_UNIT_MEMORY_H_
