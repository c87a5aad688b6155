// The device memory of what units have only while they are in use, and of what one action works in:
// planned, as slots and places of their own, or taken from a caching allocator at the time of use.
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
  kGatherWire,      // A value as it travels, where that is another form.
  kWire,            // A gradient as it travels, where that is another form.
  kArrived,         // What comes of gradients, where it is summed afterwards.
  kInsideSum,       // Of a host's gradients, between two hops.
  kReplicaWire,     // A shard, on its way between replicas.
  kReplicaArrived,  // What comes of shards, where it is summed afterwards.
  kFetch,           // A cast behind the way from the host.
  kLeaving,         // Pinned: activations on their way to a disk.
  kComing           // Pinned: and back.
};
constexpr int kNumScratch = 9;

// Bytes are empty views where there are none to be had of that kind.
class UnitMemory {
 public:
  virtual ~UnitMemory() = default;
  // For what action `index` of the schedule of `mode` takes on `stream`.
  virtual View Take(const Use& use, int64_t bytes, Mode mode, size_t index, StreamId stream) = 0;
  // `user` has used it, too, with what it has enqueued so far.
  virtual void Give(const View& bytes, StreamId user) = 0;
  // At least so many bytes, or as many as there are, for what is enqueued on `stream` until they
  // are given back.
  virtual View Borrow(Scratch what, int64_t bytes, StreamId stream) = 0;
  virtual void Return(Scratch what, const View& bytes) = 0;
  // Another schedule takes the place of this mode's, with the same slots.
  virtual void Replace(Mode mode, const Schedule& schedule) = 0;
};

// Memory of the phase that has begun; an empty view where there are no elements.
View NewPersistent(PhasedAllocator& allocator, int64_t elements, MemoryUse use, DType dtype);
View NewBytes(PhasedAllocator& allocator, int64_t bytes, MemoryUse use);

// Memory of the allocator, taken here. `eval`: uses slots of `train`. `pieces`: of kLeaving and
// kComing, bytes; 0: nothing goes between the device and a disk. Keeps references.
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
