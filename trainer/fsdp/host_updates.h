// The part of a step in which the host updates offloaded units, and in which spilled parts come
// from the disk and go back.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_
#define FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

// As many slots as are asked for, `most` at most.
int Slots(int64_t asked, int64_t most);

// The units in the order in which the next forward reads them.
std::vector<int> OrderOfUpdates(const ScheduleOptions& options, const std::set<int>& units);

// Lists actions of one step. Keeps references.
class HostUpdates {
 public:
  HostUpdates(const ScheduleOptions& options, ActionList& list);

  int update_slots() const { return update_slots_; }
  int spill_slots() const { return spill_slots_; }

  // For a training step: lists the reads from the disk that wait for no update of the step.
  void Begin() { ReadAheadOf(0); }
  // Lists the update of a unit, which begins when the norm is known and `read`, beside the
  // gradient, is there; and its way back, with the reads of later units before it. Where units are
  // spilled, call it in the order of DeviceUpdates.
  void Update(int unit, const std::vector<Use>& read = {});
  // The same for the pieces of its matrices, of which momentum alone is updated.
  void MakePieces(int unit, const Use& pieces);
  // For a step without updates: reads a spilled part of a unit into the slot that it returns.
  Use ReadSpilled(int unit, int part);

 private:
  void ListParts(const std::vector<int>& order);
  void AddUpdate(ActionKind kind, int unit, const std::vector<Use>& read, std::vector<Use> writes);
  void AddReturn(int unit, const Use& from);
  void UpdateInMemory(int unit, const std::vector<Use>& read);
  // Reads the next part into a slot, and what `update` lists for it there; then the way back.
  template <typename Listed>
  void WithNextPart(int unit, const Listed& update);
  // Lists the reads that must be on their way when the `n`-th part, from 0 on, is updated.
  void ReadAheadOf(size_t n);

  const ScheduleOptions& o_;
  ActionList& list_;
  int update_slots_ = 0, next_update_slot_ = 0;
  int spill_slots_ = 0, next_spill_slot_ = 0;
  size_t ahead_ = 0;            // Parts.
  std::vector<Use> parts_;      // On the disk, in the order of their updates.
  size_t next_part_ = 0;        // To be updated.
  std::vector<Use> in_memory_;  // Where the parts read so far are.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_HOST_UPDATES_H_
