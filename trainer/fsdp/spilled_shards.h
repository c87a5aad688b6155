// What of the training state lies on a disk, and the slots in host memory where parts of it are
// while they are updated.
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
#include "trainer/runtime/spill_memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A slot holds a part of one flat parameter's shards: the same elements of each that is spilled,
// and, where what is computed with goes back to the device in another dtype, of that.
class SpilledShards {
 public:
  // Parts of at most so many elements. All other flat parameters have one part, all of the shard.
  SpilledShards(const Layout& layout, int64_t part_elements);

  // Some of the flat parameter's shards will be; and what comes back, of this dtype, if it does.
  void Spill(int flat, std::optional<DType> copy);
  // One of them, of memory on the disk. Before the slots are taken.
  void Add(int flat, const View& spilled);
  // As many in pinned memory, if there is anything to spill; once.
  void TakeSlots(PhasedAllocator& allocator, int slots);

  bool Holds(const View& shard) const { return spilled_.count(shard.data) > 0; }
  const std::vector<View>& Of(int flat) const { return shards_[flat]; }
  const ShardPart& Part(int unit, int part) const { return unit_parts_[unit][part]; }
  std::vector<ShardPart> PartsOf(int flat) const;

  // The part of the shard: in the slot, where it is spilled.
  View In(int slot, const ShardPart& part, const View& shard) const;
  Located In(int slot, const ShardPart& part, const Located& shard) const;
  // What comes back of the part; empty, where that is the master.
  View CopyIn(int slot, const ShardPart& part) const;

  // Enqueue the way of a part of one shard into a slot and back.
  void Read(Stream& stream, int slot, const ShardPart& part, const View& shard) const;
  void Write(Stream& stream, int slot, const ShardPart& part, const View& shard) const;

 private:
  const std::vector<FlatParameter>& flats_;
  const int64_t part_elements_;
  std::vector<std::vector<ShardPart>> unit_parts_;  // By unit.
  std::vector<bool> spills_;                        // By flat parameter.
  std::vector<std::vector<View>> shards_;           // Likewise.
  std::vector<std::optional<DType>> copies_;        // Likewise.
  std::unordered_set<const std::byte*> spilled_;    // Where they begin on the disk.
  std::vector<std::byte*> slots_;
  int64_t copy_offset_ = 0;        // In a slot, behind all that is spilled of any part.
  SpillMemory* memory_ = nullptr;  // Null on a simulated device.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SPILLED_SHARDS_H_
