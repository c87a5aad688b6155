// What of the training state lies on a disk, and the slots in host memory where it is while it is
// updated.
#ifndef FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_
#define FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/runtime/spill_memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Every tensor of a unit has a place of its own in a slot, and units have the same slots one after
// the other.
class SpilledShards {
 public:
  explicit SpilledShards(const Layout& layout);

  // A shard of a flat parameter, of memory on the disk. Before the slots are taken.
  void Add(int flat, const View& spilled);
  // As many in pinned memory, each for any unit, if there is anything to spill; once.
  void TakeSlots(PhasedAllocator& allocator, int slots);

  bool Holds(const View& shard) const { return places_.count(shard.data) > 0; }
  const std::vector<View>& Of(int flat) const { return shards_[flat]; }
  // Where the shard is while it is in a slot; itself, where it is not spilled.
  View In(int slot, const View& shard) const;

  // Enqueue the way of one shard into its slot and back.
  void Read(Stream& stream, int slot, const View& shard) const;
  void Write(Stream& stream, int slot, const View& shard) const;

 private:
  std::vector<int> unit_of_flat_;
  std::vector<std::vector<View>> shards_;                 // By flat parameter.
  std::vector<int64_t> unit_bytes_;                       // By unit: in a slot.
  std::unordered_map<const std::byte*, int64_t> places_;  // In a slot, by address on the disk.
  std::vector<std::byte*> slots_;
  SpillMemory* memory_ = nullptr;  // Null on a simulated device.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_
