// The training state that lies on a disk, and the slots in host memory for the parts that are being
// updated. State is spilled in parts, not in units: a slot for the largest unit took more memory
// than spilling saved (GPT-2 124M on two ranks).
// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_
#define FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/moves.h"
#include "trainer/runtime/spill/spill_memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A slot holds a part of one flat parameter's shards: the same elements of each spilled shard, and
// of the copy that goes back to the device in another dtype, if there is one. Where matrices are
// updated whole, momentum has a slot when pieces are made of it, and all else at the update.
class SpilledShards {
 public:
  // Spilled shards have parts of at most so many elements. Other flat parameters have one part, the
  // whole shard.
  SpilledShards(const Layout& layout, int64_t part_elements);

  // Declares that some of the flat parameter's shards will be spilled. `copy`: the dtype of the
  // copy that goes back to the device, if one does.
  void Spill(int flat, std::optional<DType> copy);
  // Adds a spilled shard, memory on the disk. Call it before the slots are taken. The first state
  // of a flat parameter with DTypes::whole is its momentum.
  void Add(int flat, const View& spilled, bool state);
  // Takes so many slots in pinned memory, if anything is spilled. Call it once.
  void TakeSlots(PhasedAllocator& allocator, int slots);

  bool Holds(const View& shard) const { return spilled_.count(shard.data) > 0; }
  std::vector<View> Of(const ShardPart& part) const;  // They move with the part.
  const ShardPart& Part(int unit, int part) const { return unit_parts_[unit][part]; }
  std::vector<ShardPart> PartsOf(int flat) const;

  // The part of the shard: in the slot if the shard is spilled.
  View In(int slot, const ShardPart& part, const View& shard) const;
  PlacedView In(int slot, const ShardPart& part, const PlacedView& shard) const;
  // The part's copy for the device; empty where that is the master.
  View CopyIn(int slot, const ShardPart& part) const;

  // Enqueue the read of a shard's part into a slot, and its write back.
  void Read(Stream& stream, int slot, const ShardPart& part, const View& shard) const;
  void Write(Stream& stream, int slot, const ShardPart& part, const View& shard) const;

 private:
  const std::vector<FlatParameter>& flats_;
  const int64_t part_elements_;
  std::vector<std::vector<ShardPart>> unit_parts_;  // By unit.
  std::vector<bool> spills_;                        // By flat parameter.
  std::vector<std::vector<View>> shards_;           // By flat parameter.
  std::vector<const std::byte*> momentum_;          // By flat parameter: that shard; null: none.
  std::vector<std::optional<DType>> copies_;        // By flat parameter.
  std::unordered_set<const std::byte*> spilled_;    // Where spilled shards begin on the disk.
  std::vector<std::byte*> slots_;
  int64_t copy_offset_ = 0;        // In a slot, behind the spilled shards of any part.
  SpillMemory* memory_ = nullptr;  // Null on a simulated device.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_
