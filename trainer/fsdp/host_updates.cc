#include "trainer/fsdp/host_updates.h"

#include <algorithm>

namespace fsdp {
namespace {

// One is being written while the other is fetched.
constexpr int64_t kUpdateSlots = 2;
// One is being updated, one written back, beside those that are read ahead.
constexpr int64_t kSpillSlotsInUse = 2;

int Slots(int64_t asked, size_t units) {
  return static_cast<int>(std::min(asked, static_cast<int64_t>(units)));
}

}  // namespace

std::vector<int> OrderOfUpdates(const ScheduleOptions& options, const std::set<int>& units) {
  std::set<int> left = units;
  std::vector<int> order;
  for (const int u : options.unit_of_segment) {
    if (left.erase(u) > 0) order.push_back(u);
  }
  return order;
}

HostUpdates::HostUpdates(const ScheduleOptions& options, ActionList& list)
    : o_(options), list_(list), spilled_(OrderOfUpdates(o_, o_.spilled_units)) {
  if (o_.mode == Mode::kTrain && o_.fetched_units.empty()) {
    update_slots_ = Slots(kUpdateSlots, o_.copied_units.size());
  }
  spill_slots_ = Slots(o_.cpu_offload.spill_ahead + kSpillSlotsInUse, spilled_.size());
}

int HostUpdates::ReadSpilled(int unit) {
  const int slot = next_spill_slot_++ % spill_slots_;
  list_.Add({.kind = ActionKind::kReadSpilled,
             .stream = StreamId::kSpillRead,
             .unit = unit,
             .spill_slot = slot},
            {{Resource::kSpilled, unit}}, {{Resource::kSpillSlot, slot}});
  return slot;
}

void HostUpdates::ReadAheadOf(size_t n) {
  const size_t end = std::min(spilled_.size(), n + 1 + o_.cpu_offload.spill_ahead);
  while (spill_slot_of_.size() < end) {
    spill_slot_of_.push_back(ReadSpilled(spilled_[spill_slot_of_.size()]));
  }
}

void HostUpdates::Update(int unit) {
  const bool fetched = o_.fetched_units.count(unit) > 0;
  const bool copied = !fetched && o_.copied_units.count(unit) > 0;
  const int slot = copied ? next_update_slot_++ % update_slots_ : -1;
  int spill_slot = -1;
  if (IsSpilled(unit)) {
    ReadAheadOf(updated_);
    spill_slot = spill_slot_of_[updated_++];
  }
  const Use master{Resource::kMaster, unit}, compute{Resource::kComputeShard, unit};
  const Use copy{Resource::kUpdateSlot, slot}, spilled{Resource::kSpillSlot, spill_slot};
  std::vector<Use> writes{master};
  if (fetched) writes.push_back(compute);
  if (copied) writes.push_back(copy);
  if (spill_slot >= 0) writes.push_back(spilled);
  list_.Add({.kind = ActionKind::kOptimizer,
             .stream = StreamId::kUpdate,
             .unit = unit,
             .update_slot = slot,
             .spill_slot = spill_slot},
            {{Resource::kFactors, 0}, {Resource::kHostGradient, unit}}, writes);
  if (!fetched) {
    std::vector<Use> returned;
    if (copied) returned.push_back(copy);
    if (!copied || o_.partly_copied_units.count(unit) > 0) {
      returned.push_back(spill_slot >= 0 ? spilled : master);
    }
    list_.Add({.kind = ActionKind::kReturn,
               .stream = StreamId::kFetch,
               .unit = unit,
               .update_slot = slot,
               .spill_slot = spill_slot},
              returned, {compute});
  }
  if (spill_slot < 0) return;
  list_.Add({.kind = ActionKind::kWriteSpilled,
             .stream = StreamId::kSpillWrite,
             .unit = unit,
             .spill_slot = spill_slot},
            {spilled}, {{Resource::kSpilled, unit}});
}

}  // namespace fsdp
