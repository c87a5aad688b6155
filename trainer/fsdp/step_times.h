// Where a step's time goes, measured by events on the compute stream that say what comes next.
// Always on; the host waits for nothing.
#ifndef FSDP_TRAIN_TRAINER_FSDP_STEP_TIMES_H_
#define FSDP_TRAIN_TRAINER_FSDP_STEP_TIMES_H_

#include <vector>

#include "trainer/fsdp/action.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Seconds on the device's clock, of one rank. The parts add up to end - begin. Work that overlaps
// with compute takes no time here: data, communication and offload are the times that compute
// waited for them.
struct StepTimes {
  double begin = 0, end = 0;
  double data = 0;  // Waiting for a micro-batch.
  double forward = 0;
  double recompute = 0;  // activation_checkpointing full; selective recomputes inside backward.
  double backward = 0;
  double optimizer = 0;      // Norm, clipping and update.
  double communication = 0;  // Waiting for a gather or a reduction.
  double offload = 0;        // Waiting for moves to and from host memory.
};

class StepClock {
 public:
  using Part = double StepTimes::*;

  void Clear() { marks_.clear(); }
  // Work that is enqueued on `stream` from now on counts as `part`.
  void Enter(Stream& stream, Part part);
  void End(EventPtr end) { end_ = std::move(end); }  // The step's end, on the same stream.

  StepTimes Read() const;  // Only when the end has passed.

 private:
  struct Mark {
    Part part;
    EventPtr event;
  };
  std::vector<Mark> marks_;
  EventPtr end_;
};

// The part of a step that an action on the compute stream counts as; null: as the action before it.
StepClock::Part PartOf(const Action& action);
// The part that waiting for an action on this stream counts as.
StepClock::Part WaitOf(StreamId stream);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_STEP_TIMES_H_
