// The part of a step in which the host updates what is offloaded; and what of that is spilled, on
// its way from the disk and back.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_
#define FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

// Units as the next forward reads them.
std::vector<int> OrderOfUpdates(const ScheduleOptions& options, const std::set<int>& units);

// Lists actions of one step. Keeps references.
class HostUpdates {
 public:
  HostUpdates(const ScheduleOptions& options, ActionList& list);

  int update_slots() const { return update_slots_; }
  int spill_slots() const { return spill_slots_; }

  // Of a training step: the reads from the disk that wait for no update of it.
  void Begin() { ReadAheadOf(0); }
  // The update of a unit, which begins when the norm is known, and its way back; the reads of those
  // behind it before that. In the order of OrderOfUpdates().
  void Update(int unit);
  // Of a step without updates: a part of what is spilled of a unit, into the slot that it returns.
  Use ReadSpilled(int unit, int part);

 private:
  void AddUpdate(int unit, std::vector<Use> writes);
  void AddReturn(int unit, const Use& from);
  void UpdateInMemory(int unit);
  void UpdateSpilled(size_t n, bool copied);
  // What is to be on its way when the `n`-th part, from 0 on, is updated.
  void ReadAheadOf(size_t n);

  const ScheduleOptions& o_;
  ActionList& list_;
  int update_slots_ = 0, next_update_slot_ = 0;
  int spill_slots_ = 0, next_spill_slot_ = 0;
  size_t ahead_ = 0;               // Parts.
  std::vector<Use> parts_;         // On the disk, in the order of their updates.
  std::map<int, int> first_part_;  // By unit.
  std::vector<Use> in_memory_;     // Where the parts are that have been read so far.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_
