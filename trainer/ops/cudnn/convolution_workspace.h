// The convolutions that cuDNN computes, and the memory that they get. Both are functions of shape
// and dtype alone, so a plan needs neither GPU nor cuDNN.
// Tests: tests/trainer/ops/cudnn/convolution_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_WORKSPACE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_WORKSPACE_H_

#include <cstdint>

#include "trainer/ops/convolution_shape.h"

namespace fsdp {

// Whether cuDNN gets this call where the machine has it. It gets none whose kernel is a matrix
// product, whose images and weights have two dtypes, or that has nothing to compute.
bool TakenByCudnn(const ConvolutionBackend& backend, const ConvolutionCall& call);

// Bytes of the parts, which follow each other; each is a multiple of 256.
struct CudnnConvolutionWorkspace {
  int64_t plan = 0;  // The most that a plan of cuDNN's may want. One that wants more is not taken.
  int64_t weights = 0;  // w or dw, in the dtype of x, with the channels side by side.

  int64_t bytes() const { return plan + weights; }
};

// plan: room for copies of images and weights with more channels to a group, which cuDNN's kernels
// for tensor cores make, and for 32 parts of dw, at most 32 MiB. It holds the plan that cuDNN 9.19
// names first for an H100, in bf16, for groups of 8 to 1010 channels.
CudnnConvolutionWorkspace CudnnWorkspaceOf(const ConvolutionCall& call);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_WORKSPACE_H_
