// The kernels that compute convolutions on CUDA. A run decides once, before its memory is planned.
// On a CPU a backend means nothing.
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKEND_H_
#define FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKEND_H_

#include <algorithm>
#include <compare>
#include <set>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/ops/convolution_shape.h"

namespace fsdp {

// One product of a convolution: y, dx or dw (convolution.h).
struct ConvolutionCall {
  enum class Pass { kForward, kDx, kDw };
  Pass pass = Pass::kForward;
  ConvolutionShape shape = {};
  DType x = DType::kFloat32, w = DType::kFloat32;  // Dtypes of the images, and of the weights.

  auto operator<=>(const ConvolutionCall&) const = default;
};

struct ConvolutionBackend {
  // cuDNN's kernels, for the calls that it can have (cudnn/convolution_cudnn.h) except
  // `refused`. Our own kernels for others.
  bool cudnn = false;
  std::vector<ConvolutionCall> refused = {};  // This machine's cuDNN has no kernel for them.
  // Null, or gets the calls that cuDNN can have, as they are asked for.
  std::set<ConvolutionCall>* asked = nullptr;

  bool Refused(const ConvolutionCall& call) const {
    return std::find(refused.begin(), refused.end(), call) != refused.end();
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKEND_H_
