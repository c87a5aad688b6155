#include "trainer/fsdp/spilled_shards.h"

#include <algorithm>

#include "trainer/core/check.h"
#include "trainer/runtime/memory.h"

namespace fsdp {
namespace {

// What goes to a disk as it is begins at such multiples.
template <typename Integer>
Integer RoundUp(Integer n) {
  constexpr auto kTo = static_cast<Integer>(kSpillAlignment);
  return (n + kTo - 1) / kTo * kTo;
}

}  // namespace

SpilledShards::SpilledShards(const Layout& layout)
    : unit_of_flat_(layout.flat_parameters.size()),
      shards_(layout.flat_parameters.size()),
      unit_bytes_(layout.units.size()) {
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    for (const int f : layout.units[u].flat_parameters) unit_of_flat_[f] = u;
  }
}

void SpilledShards::Add(int flat, const View& spilled) {
  FSDP_CHECK(slots_.empty()) << "slots have been taken";
  if (spilled.NumElements() == 0) return;
  int64_t& end = unit_bytes_[unit_of_flat_[flat]];
  shards_[flat].push_back(spilled);
  places_[spilled.data] = end;
  end += RoundUp(spilled.bytes());
}

void SpilledShards::TakeSlots(PhasedAllocator& allocator, int slots) {
  memory_ = allocator.spill();
  const int64_t bytes = *std::ranges::max_element(unit_bytes_);
  if (bytes == 0) return;
  for (int i = 0; i < slots; ++i) {
    // An allocator gives out multiples of 64.
    std::byte* const begin =
        allocator.Allocate(bytes + kSpillAlignment, {MemoryKind::kOptimizer, MemoryPlace::kPinned});
    const auto address = reinterpret_cast<uintptr_t>(begin);
    slots_.push_back(begin + (RoundUp(address) - address));
  }
}

View SpilledShards::In(int slot, const View& shard) const {
  const auto place = places_.find(shard.data);
  if (place == places_.end()) return shard;
  return {slots_.at(slot) + place->second, shard.dtype, shard.shape};
}

void SpilledShards::Read(Stream& stream, int slot, const View& shard) const {
  ReadSpilled(stream, memory_, shard, In(slot, shard));
}

void SpilledShards::Write(Stream& stream, int slot, const View& shard) const {
  WriteSpilled(stream, memory_, In(slot, shard), shard);
}

}  // namespace fsdp
