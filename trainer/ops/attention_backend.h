// Whose kernels attention takes: what a run decides once, before its memory is planned. On a CPU
// all but kMath are kOwn.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_

namespace fsdp {

enum class AttentionBackend {
  kOwn,
  // cuDNN's, for the calls that they are for (cudnn/attention_workspace.h), and our own for others.
  // Backward adds up dq in the order in which its blocks come, so bits differ from run to run.
  kCudnn,
  // The same bits from run to run, for memory: 2 batch heads seq^2 bytes.
  kCudnnDeterministic,
  // Forward alone, where this cuDNN's backward is not to be had: backward is our own.
  kCudnnForward,
  // Our own that keep the probabilities (attention_math.h), on a CPU as well.
  kMath,
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_
