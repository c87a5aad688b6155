// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_

#include "trainer/core/view.h"

namespace fsdp {

enum class Pass { kForward, kRecompute, kBackward };

// How many, and which of them.
struct BatchRanks {
  int count = 1, own = 0;
};

// Hears where the model's code is. A segment is a stretch of the forward pass: the embedding, a
// block, the head (nn/model.h).
class SegmentHooks {
 public:
  virtual ~SegmentHooks() = default;
  virtual void Enter(int segment, Pass pass) = 0;
  virtual void Leave(int segment, Pass pass) = 0;
  // False: neither it nor a segment before it has anything to train. Its forward is not recorded.
  virtual bool HasBackward(int segment) const = 0;

  // The ranks whose micro-batches are one to a batch norm, and this one's place among them.
  virtual BatchRanks batch_ranks() const { return {}; }
  // Where there are several: enqueues values = their sum over those ranks, between what the tape's
  // stream has and what comes. fp32; every rank calls it at the same places of its model's code, in
  // forward and backward as often as the segment has ModelSegment::batch_norms.
  virtual void SumOverRanks(const View&) {}
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
