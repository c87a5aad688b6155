#include "trainer/fsdp/spilled_shards.h"

#include <algorithm>

#include "trainer/core/check.h"
#include "trainer/core/round_up.h"
#include "trainer/runtime/memory.h"

namespace fsdp {

SpilledShards::SpilledShards(const Layout& layout, int64_t part_elements)
    : flats_(layout.flat_parameters),
      part_elements_(part_elements),
      spills_(flats_.size()),
      shards_(flats_.size()),
      momentum_(flats_.size()),
      copies_(flats_.size()) {
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    unit_parts_.push_back(PartsOfUnit(layout, u, part_elements));
  }
}

void SpilledShards::Spill(int flat, std::optional<DType> copy) {
  spills_[flat] = true;
  copies_[flat] = copy;
}

void SpilledShards::Add(int flat, const View& spilled, bool state) {
  FSDP_CHECK(spills_[flat]) << "flat parameter " << flat << " is not spilled";
  FSDP_CHECK(slots_.empty()) << "slots have been taken";
  if (spilled.NumElements() == 0) return;
  shards_[flat].push_back(spilled);
  spilled_.insert(spilled.data);
  const bool momentum = state && flats_[flat].dtypes.whole && momentum_[flat] == nullptr;
  if (momentum) momentum_[flat] = spilled.data;
}

std::vector<View> SpilledShards::Of(const ShardPart& part) const {
  std::vector<View> shards;
  for (const View& shard : shards_[part.flat]) {
    if (part.momentum == (shard.data == momentum_[part.flat])) shards.push_back(shard);
  }
  return shards;
}

std::vector<ShardPart> SpilledShards::PartsOf(int flat) const {
  const int64_t size = flats_[flat].shard_size;
  return Parts(flat, size, spills_[flat] ? part_elements_ : size);
}

void SpilledShards::TakeSlots(PhasedAllocator& allocator, int slots) {
  memory_ = allocator.spill();
  int64_t copies = 0;
  for (size_t f = 0; f < flats_.size(); ++f) {
    if (shards_[f].empty()) continue;
    const int64_t count = PartsOf(static_cast<int>(f)).front().count;
    for (const bool momentum : {false, true}) {
      int64_t bytes = 0;
      for (const View& shard : Of({static_cast<int>(f), 0, count, momentum})) {
        bytes += RoundUp(count * SizeOf(shard.dtype), kSpillAlignment);
      }
      copy_offset_ = std::max(copy_offset_, bytes);
    }
    if (copies_[f]) copies = std::max(copies, count * SizeOf(*copies_[f]));
  }
  const int64_t bytes = copy_offset_ + copies;
  if (bytes == 0) return;
  for (int i = 0; i < slots; ++i) {
    // An allocator gives out multiples of 64.
    std::byte* const begin =
        allocator.Allocate(bytes + kSpillAlignment, {MemoryKind::kOptimizer, MemoryPlace::kPinned});
    const auto address = reinterpret_cast<uintptr_t>(begin);
    slots_.push_back(begin + (RoundUp<uintptr_t>(address, kSpillAlignment) - address));
  }
}

View SpilledShards::In(int slot, const ShardPart& part, const View& shard) const {
  if (!Holds(shard)) return shard.data ? shard.Slice(part.begin, part.count) : shard;
  std::byte* at = slots_.at(slot);
  const bool momentum = shard.data == momentum_[part.flat];
  for (const View& other : Of({part.flat, part.begin, part.count, momentum})) {
    if (other.data == shard.data) break;
    at += RoundUp(part.count * SizeOf(other.dtype), kSpillAlignment);
  }
  return {at, shard.dtype, Shape{part.count}};
}

PlacedView SpilledShards::In(int slot, const ShardPart& part, const PlacedView& shard) const {
  return {In(slot, part, shard.view), Holds(shard.view) ? MemoryPlace::kPinned : shard.place,
          shard.code};
}

View SpilledShards::CopyIn(int slot, const ShardPart& part) const {
  const std::optional<DType>& copy = copies_[part.flat];
  if (!copy) return {};
  return {slots_.at(slot) + copy_offset_, *copy, Shape{part.count}};
}

void SpilledShards::Read(Stream& stream, int slot, const ShardPart& part, const View& shard) const {
  ReadSpilled(stream, memory_, shard.Slice(part.begin, part.count), In(slot, part, shard));
}

void SpilledShards::Write(Stream& stream, int slot, const ShardPart& part,
                          const View& shard) const {
  WriteSpilled(stream, memory_, In(slot, part, shard), shard.Slice(part.begin, part.count));
}

}  // namespace fsdp
