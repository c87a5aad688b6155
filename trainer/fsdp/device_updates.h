// The updates of units on the device, and what comes before them where matrices are updated whole
// (schedule.h).
// Tests: tests/trainer/engine/wait_deletion_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_
#define FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_

#include <vector>

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

class DeviceUpdates {
 public:
  // `order`: the units that the step updates, in that order. Keeps references to the first two.
  DeviceUpdates(const ScheduleOptions& options, ActionList& list, const std::vector<int>& order);

  // To be called in that order, for units that the device updates. Where the unit has matrices that
  // are updated whole: their products, behind the pieces of the next such unit; the results travel
  // beside the next products. Then the update of the one before, and of this one if it is the last.
  void Update(int unit);
  // Before all of them, where second moments are factored.
  void FactorMoments();

 private:
  Use Pieces(int i) const { return In(Resource::kMatrixPieces, i); }
  Use Owned(int i) const { return In(Resource::kMatrixOwned, i); }
  Use In(Resource what, int i) const;
  void Send(int i);
  void SumOverUnits(ActionKind sum, ActionKind reduce, Resource what);
  void Add(ActionKind kind, StreamId stream, int i, std::vector<Use> reads,
           std::vector<Use> writes);

  void UpdateShard(int unit, std::vector<Use> pieces = {});

  const ScheduleOptions& options_;
  ActionList& list_;
  const bool travels_;
  const std::vector<int> order_;
  std::vector<int> units_;
  int next_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_
