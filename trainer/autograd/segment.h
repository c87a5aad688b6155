// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_

namespace fsdp {

enum class Pass { kForward, kRecompute, kBackward };

// Hears where the model's code is. A segment is a stretch of the forward pass: the embedding, a
// block, the head (nn/model.h).
class SegmentHooks {
 public:
  virtual ~SegmentHooks() = default;
  virtual void Enter(int segment, Pass pass) = 0;
  virtual void Leave(int segment, Pass pass) = 0;
  // False: neither it nor a segment before it has anything to train. Its forward is not recorded.
  virtual bool HasBackward(int segment) const = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_SEGMENT_H_
