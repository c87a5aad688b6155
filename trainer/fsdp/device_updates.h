// The updates of units on the device, and what comes before updates, on the device or the host,
// where matrices are updated whole or second moments are factored (schedule.h).
// Tests: tests/trainer/engine/wait_deletion_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_
#define FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_

#include <vector>

#include "trainer/fsdp/action_list.h"
#include "trainer/fsdp/host_updates.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

class DeviceUpdates {
 public:
  // `order`: the units that the step updates, in that order. Keeps references to the first three.
  DeviceUpdates(const ScheduleOptions& options, ActionList& list, HostUpdates& host,
                const std::vector<int>& order);

  // To be called in that order. Where the unit has matrices that are updated whole: their products,
  // behind the pieces of the next such unit; the results travel beside the next products. Then the
  // update of the one before, and of this one if it is the last.
  void Update(int unit);
  // Before all of them, where second moments are factored.
  void FactorMoments();

 private:
  Use Pieces(int i) const { return In(Resource::kMatrixPieces, i); }
  Use Owned(int i) const { return In(Resource::kMatrixOwned, i); }
  Use In(Resource what, int i) const;
  // An update of the i-th such unit reads them.
  Use Results(int i) const {
    return In(on_host_ ? Resource::kHostPieces : Resource::kMatrixPieces, i);
  }
  void Send(int i);
  void Return(int i);
  // `sum` of each unit, and `reduce` of all.
  void SumOverUnits(ActionKind sum, ActionKind reduce, Resource what, Resource on_host);
  void Move(StreamId stream, const Use& from, const Use& to);
  void Add(ActionKind kind, StreamId stream, int i, std::vector<Use> reads,
           std::vector<Use> writes);

  void UpdateShard(int unit, std::vector<Use> read = {});

  const ScheduleOptions& options_;
  ActionList& list_;
  HostUpdates& host_;
  const bool travels_;
  const bool on_host_;  // Updates of all shards.
  const int slots_;
  const std::vector<int> order_;
  std::vector<int> units_;
  int next_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_DEVICE_UPDATES_H_
