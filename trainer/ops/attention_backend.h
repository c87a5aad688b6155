// The kernels that compute attention. A run decides once, before its memory is planned. On a CPU
// all but kMath mean kOwn.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_

namespace fsdp {

enum class AttentionBackend {
  kOwn,
  // cuDNN's for the calls that they support (cudnn/attention_cudnn.h), and our own for others.
  // Backward adds up dq in the order in which its blocks finish, so bits differ from run to run.
  kCudnn,
  // cuDNN's with the same bits from run to run, at a cost of 2 batch heads seq^2 bytes of memory.
  kCudnnDeterministic,
  // cuDNN's in forward alone, where this cuDNN has no usable backward: backward is our own.
  kCudnnForward,
  // Our own, which keep the probabilities (attention_math.h), on a CPU as well.
  kMath,
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_BACKEND_H_
