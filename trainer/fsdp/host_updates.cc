#include "trainer/fsdp/host_updates.h"

#include <algorithm>

namespace fsdp {
namespace {

// One is being written while the other is fetched.
constexpr int64_t kUpdateSlots = 2;
// One is being updated, one written back, beside those that are read ahead.
constexpr int64_t kSpillSlotsInUse = 2;

int Slots(int64_t asked, int64_t most) { return static_cast<int>(std::min(asked, most)); }

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
    : o_(options), list_(list) {
  if (o_.mode == Mode::kTrain && o_.fetched_units.empty()) {
    const auto in_memory = [&](int u) { return o_.spilled_units.count(u) == 0; };
    update_slots_ = Slots(kUpdateSlots, std::ranges::count_if(o_.copied_units, in_memory));
  }
  if (o_.spilled_units.empty()) return;
  std::set<int> units;
  std::vector<int> sizes;
  for (const auto& [unit, parts] : o_.spilled_units) {
    units.insert(unit);
    sizes.push_back(static_cast<int>(parts.size()));
  }
  for (const int u : OrderOfUpdates(o_, units)) {
    first_part_[u] = static_cast<int>(parts_.size());
    for (int part = 0; part < std::ssize(o_.spilled_units.at(u)); ++part) {
      parts_.push_back({u, part});
    }
  }
  // Of a unit as most are: the largest, with a table in it, may be a third of the model.
  std::ranges::nth_element(sizes, sizes.begin() + std::ssize(sizes) / 2);
  const int64_t ahead = o_.cpu_offload.spill_ahead * sizes[sizes.size() / 2];
  ahead_ = static_cast<size_t>(ahead);
  spill_slots_ = Slots(ahead + kSpillSlotsInUse, std::ssize(parts_));
}

int HostUpdates::ReadSpilled(int unit, int part) {
  const int slot = next_spill_slot_++ % spill_slots_;
  list_.Add({.kind = ActionKind::kReadSpilled,
             .stream = StreamId::kSpillRead,
             .unit = unit,
             .part = part,
             .spill_slot = slot},
            {{Resource::kSpilled, first_part_.at(unit) + part}}, {{Resource::kSpillSlot, slot}});
  return slot;
}

void HostUpdates::ReadAheadOf(size_t n) {
  const size_t end = std::min(parts_.size(), n + 1 + ahead_);
  while (spill_slot_of_.size() < end) {
    const Part& next = parts_[spill_slot_of_.size()];
    spill_slot_of_.push_back(ReadSpilled(next.unit, next.part));
  }
}

void HostUpdates::Update(int unit) {
  const auto spilled = o_.spilled_units.find(unit);
  if (spilled == o_.spilled_units.end()) return UpdateInMemory(unit);
  const std::vector<bool>& copied = spilled->second;
  for (size_t part = 0; part < copied.size(); ++part) {
    UpdateSpilled(first_part_.at(unit) + part, copied[part]);
  }
}

void HostUpdates::UpdateInMemory(int unit) {
  const bool fetched = o_.fetched_units.count(unit) > 0;
  const bool copied = !fetched && o_.copied_units.count(unit) > 0;
  const int slot = copied ? next_update_slot_++ % update_slots_ : -1;
  const Use master{Resource::kMaster, unit}, compute{Resource::kComputeShard, unit};
  const Use copy{Resource::kUpdateSlot, slot};
  std::vector<Use> writes{master};
  if (fetched) writes.push_back(compute);
  if (copied) writes.push_back(copy);
  list_.Add({.kind = ActionKind::kOptimizer,
             .stream = StreamId::kUpdate,
             .unit = unit,
             .update_slot = slot},
            {{Resource::kFactors, 0}, {Resource::kHostGradient, unit}}, writes);
  if (fetched) return;
  list_.Add(
      {.kind = ActionKind::kReturn, .stream = StreamId::kFetch, .unit = unit, .update_slot = slot},
      {copied ? copy : master}, {compute});
}

// What comes back to the device is in the slot, too.
void HostUpdates::UpdateSpilled(size_t n, bool copied) {
  ReadAheadOf(n);
  const auto [unit, part] = parts_[n];
  const int slot = spill_slot_of_[n];
  const bool fetched = o_.fetched_units.count(unit) > 0;
  const Use compute{Resource::kComputeShard, unit}, in_memory{Resource::kSpillSlot, slot};
  std::vector<Use> writes{in_memory};
  const Use copy{Resource::kSpillCopy, slot};
  if (fetched) writes.push_back(compute);
  if (copied) writes.push_back(copy);
  list_.Add({.kind = ActionKind::kOptimizer,
             .stream = StreamId::kUpdate,
             .unit = unit,
             .part = part,
             .spill_slot = slot},
            {{Resource::kFactors, 0}, {Resource::kHostGradient, unit}}, writes);
  if (!fetched) {
    list_.Add({.kind = ActionKind::kReturn,
               .stream = StreamId::kFetch,
               .unit = unit,
               .part = part,
               .spill_slot = slot},
              {copied ? copy : in_memory}, {compute});
  }
  list_.Add({.kind = ActionKind::kWriteSpilled,
             .stream = StreamId::kSpillWrite,
             .unit = unit,
             .part = part,
             .spill_slot = slot},
            {in_memory}, {{Resource::kSpilled, static_cast<int>(n)}});
}

}  // namespace fsdp
