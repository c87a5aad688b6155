#include "trainer/fsdp/host_updates.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
    sizes.push_back(static_cast<int>(o_.units[u].spilled.size()));
  }
  if (units.empty()) return;
  for (const int u : OrderOfUpdates(o_, units)) {
    first_part_[u] = static_cast<int>(parts_.size());
    for (int part = 0; part < std::ssize(o_.units[u].spilled); ++part) {
      parts_.push_back({.what = Resource::kSpilled, .of = u, .part = part});
    }
  }
  // Sized for a typical unit: the largest, with a table in it, may be a third of the model.
  std::ranges::nth_element(sizes, sizes.begin() + std::ssize(sizes) / 2);
  const int64_t ahead = o_.cpu_offload.spill_ahead * sizes[sizes.size() / 2];
  ahead_ = static_cast<size_t>(ahead);
  spill_slots_ = Slots(ahead + kSpillSlotsInUse, std::ssize(parts_));
}

Use HostUpdates::ReadSpilled(int unit, int part) {
  const Use slot{Resource::kSpillSlot, unit, next_spill_slot_++ % spill_slots_, part};
  list_.Add({.kind = ActionKind::kMove,
             .stream = StreamId::kSpillRead,
             .unit = unit,
             .reads = {parts_[first_part_.at(unit) + part]},
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
  const std::vector<bool>& copied = o_.units[unit].spilled;
  if (copied.empty()) return UpdateInMemory(unit, read);
  for (size_t part = 0; part < copied.size(); ++part) {
    UpdateSpilled(first_part_.at(unit) + part, copied[part]);
  }
}

void HostUpdates::AddUpdate(int unit, const std::vector<Use>& read, std::vector<Use> writes) {
  std::vector<Use> reads = {{Resource::kFactors}, {Resource::kHostGradient, unit}};
  reads.insert(reads.end(), read.begin(), read.end());
  list_.Add({.kind = ActionKind::kOptimizer,
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
  AddUpdate(unit, read, std::move(writes));
  if (!fetched) AddReturn(unit, copied ? copy : master);
}

// The slot also holds what comes back to the device.
void HostUpdates::UpdateSpilled(size_t n, bool copied) {
  ReadAheadOf(n);
  const Use& on_disk = parts_[n];
  const Use in_memory = in_memory_[n], compute{Resource::kComputeShard, on_disk.of};
  const Use copy{Resource::kSpillCopy, in_memory.of, in_memory.slot, in_memory.part};
  const bool fetched = o_.units[on_disk.of].fetched;
  std::vector<Use> writes{in_memory};
  if (fetched) writes.push_back(compute);
  if (copied) writes.push_back(copy);
  AddUpdate(on_disk.of, {}, std::move(writes));
  if (!fetched) AddReturn(on_disk.of, copied ? copy : in_memory);
  list_.Add({.kind = ActionKind::kMove,
             .stream = StreamId::kSpillWrite,
             .unit = on_disk.of,
             .reads = {in_memory},
             .writes = {on_disk}});
}

}  // namespace fsdp
