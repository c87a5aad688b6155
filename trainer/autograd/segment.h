// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_

#include "trainer/core/view.h"

namespace fsdp {

enum class Pass { kForward, kRecompute, kBackward };

// A number of ranks, and this rank's place among them.
struct BatchRanks {
  int count = 1, own = 0;
};

// Told when the model's code enters and leaves a segment. A segment is a stretch of the forward
// pass: the embedding, a block, the head (nn/model.h).
class SegmentHooks {
 public:
  virtual ~SegmentHooks() = default;
  virtual void Enter(int segment, Pass pass) = 0;
  virtual void Leave(int segment, Pass pass) = 0;
  // False: neither this segment nor one before it has anything to train. Its forward is then not
  // recorded.
  virtual bool HasBackward(int segment) const = 0;

  // The ranks over which a batch norm takes its statistics, and this rank's place among them.
  virtual BatchRanks batch_ranks() const { return {}; }
  // Enqueues values = their sum over batch_ranks(), fp32, where there are several ranks: after the
  // work that the tape's stream has, before the work that comes. Every rank calls it at the same
  // places of its model's code, in forward and in backward, ModelSegment::batch_norms times in each
  // pass.
  virtual void SumOverRanks(const View&) {}
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
