#include "trainer/fsdp/host_updates.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// One is being written while the other is fetched.
constexpr int64_t kUpdateSlots = 2;
// One is being updated, one written back, beside those that are read ahead.
constexpr int64_t kSpillSlotsInUse = 2;

}  // namespace

int Slots(int64_t asked, int64_t most) { return static_cast<int>(std::min(asked, most)); }

std::vector<int> OrderOfUpdates(const ScheduleOptions& options, const std::set<int>& units) {
  std::set<int> left = units;
  std::vector<int> order;
  for (const SegmentRow& segment : options.segments) {
    if (left.erase(segment.unit) > 0) order.push_back(segment.unit);
  }
  return order;
}

HostUpdates::HostUpdates(const ScheduleOptions& options, ActionList& list)
    : o_(options), list_(list) {
  if (o_.mode == Mode::kTrain && !o_.Any(&UnitRow::fetched)) {
    const auto copied = [](const UnitRow& unit) { return unit.copied && unit.spilled.empty(); };
    update_slots_ = Slots(kUpdateSlots, std::ranges::count_if(o_.units, copied));
  }
  std::set<int> units;
  std::vector<int> sizes;
  for (int u = 0; u < std::ssize(o_.units); ++u) {
    if (o_.units[u].spilled.empty()) continue;
    units.insert(u);
    sizes.push_back(static_cast<int>(o_.units[u].spilled.size()) + o_.units[u].momentum_parts);
  }
  if (units.empty()) return;
  ListParts(OrderOfUpdates(o_, units));
  // Sized for a typical unit: the largest, with a table in it, may be a third of the model.
  std::ranges::nth_element(sizes, sizes.begin() + std::ssize(sizes) / 2);
  const int64_t ahead = o_.cpu_offload.spill_ahead * sizes[sizes.size() / 2];
  ahead_ = static_cast<size_t>(ahead);
  spill_slots_ = Slots(ahead + kSpillSlotsInUse, std::ssize(parts_));
}

// As DeviceUpdates has it: pieces of a unit are made before the products of the one before it,
// which is updated behind the products of this one.
void HostUpdates::ListParts(const std::vector<int>& order) {
  const auto add = [&](int unit, bool momentum) {
    const int all = static_cast<int>(o_.units[unit].spilled.size());
    const int begin = momentum ? all : 0;
    for (int part = 0; part < (momentum ? o_.units[unit].momentum_parts : all); ++part) {
      parts_.push_back({.what = Resource::kSpilled, .of = unit, .part = begin + part});
    }
  };
  std::vector<int> whole;
  std::ranges::copy_if(order, std::back_inserter(whole), [&](int u) { return o_.units[u].whole; });
  size_t i = 0;
  for (const int u : order) {
    if (!o_.units[u].whole) {
      add(u, false);
      continue;
    }
    if (i == 0) add(u, true);
    if (i + 1 < whole.size()) add(whole[i + 1], true);
    if (i > 0) add(whole[i - 1], false);
    if (++i == whole.size()) add(u, false);
  }
}

Use HostUpdates::ReadSpilled(int unit, int part) {
  const Use slot{Resource::kSpillSlot, unit, next_spill_slot_++ % spill_slots_, part};
  list_.Add({.kind = ActionKind::kMove,
             .stream = StreamId::kSpillRead,
             .unit = unit,
             .reads = {{.what = Resource::kSpilled, .of = unit, .part = part}},
             .writes = {slot}});
  return slot;
}

void HostUpdates::ReadAheadOf(size_t n) {
  const size_t end = std::min(parts_.size(), n + 1 + ahead_);
  while (in_memory_.size() < end) {
    const Use& next = parts_[in_memory_.size()];
    in_memory_.push_back(ReadSpilled(next.of, next.part));
  }
}

void HostUpdates::Update(int unit, const std::vector<Use>& read) {
  const std::vector<bool>& spilled = o_.units[unit].spilled;
  if (spilled.empty()) return UpdateInMemory(unit, read);
  const bool fetched = o_.units[unit].fetched;
  const Use compute{Resource::kComputeShard, unit};
  for (const bool copied : spilled) {
    WithNextPart(unit, [&](const Use& in_memory) {
      // The slot also holds what comes back to the device.
      const Use copy{Resource::kSpillCopy, in_memory.of, in_memory.slot, in_memory.part};
      std::vector<Use> writes{in_memory};
      if (fetched) writes.push_back(compute);
      if (copied) writes.push_back(copy);
      AddUpdate(ActionKind::kOptimizer, unit, read, std::move(writes));
      if (!fetched) AddReturn(unit, copied ? copy : in_memory);
    });
  }
}

void HostUpdates::MakePieces(int unit, const Use& pieces) {
  const auto make = [&](std::vector<Use> writes) {
    AddUpdate(ActionKind::kMatrixPieces, unit, {}, std::move(writes));
  };
  if (o_.units[unit].spilled.empty()) make({pieces});
  for (int part = 0; part < o_.units[unit].momentum_parts; ++part) {
    WithNextPart(unit, [&](const Use& in_memory) { make({in_memory, pieces}); });
  }
}

void HostUpdates::AddUpdate(ActionKind kind, int unit, const std::vector<Use>& read,
                            std::vector<Use> writes) {
  std::vector<Use> reads = {{Resource::kFactors}, {Resource::kHostGradient, unit}};
  reads.insert(reads.end(), read.begin(), read.end());
  list_.Add({.kind = kind,
             .stream = StreamId::kUpdate,
             .unit = unit,
             .reads = std::move(reads),
             .writes = std::move(writes)});
}

void HostUpdates::AddReturn(int unit, const Use& from) {
  list_.Add({.kind = ActionKind::kMove,
             .stream = StreamId::kFetch,
             .unit = unit,
             .reads = {from},
             .writes = {{Resource::kComputeShard, unit}}});
}

void HostUpdates::UpdateInMemory(int unit, const std::vector<Use>& read) {
  const bool fetched = o_.units[unit].fetched;
  const bool copied = !fetched && o_.units[unit].copied;
  const int slot = copied ? next_update_slot_++ % update_slots_ : -1;
  const Use master{Resource::kMaster, unit}, compute{Resource::kComputeShard, unit};
  const Use copy{Resource::kUpdated, unit, slot};
  std::vector<Use> writes{master};
  if (fetched) writes.push_back(compute);
  if (copied) writes.push_back(copy);
  AddUpdate(ActionKind::kOptimizer, unit, read, std::move(writes));
  if (!fetched) AddReturn(unit, copied ? copy : master);
}

template <typename Listed>
void HostUpdates::WithNextPart(int unit, const Listed& update) {
  const size_t n = next_part_++;
  FSDP_CHECK_EQ(parts_.at(n).of, unit) << "part " << n << " is another unit's";
  ReadAheadOf(n);
  const Use in_memory = in_memory_[n];
  update(in_memory);
  list_.Add({.kind = ActionKind::kMove,
             .stream = StreamId::kSpillWrite,
             .unit = unit,
             .reads = {in_memory},
             .writes = {parts_[n]}});
}

}  // namespace fsdp
