// Attention (attention.h) by cuDNN's kernels, and whether a run can have them.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_

#include <string>

#include "trainer/core/view.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

// For calls that TakenByCudnn() (attention_workspace.h). A thread keeps a handle and its plans, of
// the GPU that is current when it first calls; a plan is made by the first call of its shape. Both
// throw DeviceError. Positions are not looked at.
void AttentionForwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                           const AttentionInputs& in, const View& out, const View& lse,
                           const View& workspace);
void AttentionBackwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                            const AttentionInputs& in, const ConstView& out, const ConstView& lse,
                            const ConstView& dout, const AttentionGradients& gradients,
                            const View& workspace);

// The plans of calls whose q, k and v are in one packed tensor, and their gradients in another,
// made before the first of them: by the thread that calls, which has a handle from then on.
// `one_row`: forward of one row alone will come, too. Throws DeviceError.
void PrepareAttentionCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype,
                           bool one_row = false);

// What a run on GPU `gpu` is to ask for, of `wanted`: kOwn where there is no cuDNN, or it lacks
// kernels for q, k and v of this dtype in one packed tensor; kCudnnForward where its backward is
// wrong in this length.
struct FoundAttention {
  AttentionBackend backend = AttentionBackend::kOwn;
  // For people: "cuDNN 9.19.0", "cuDNN 9.10.2, backward by own kernels (why)", "own kernels (why)".
  std::string name;
};
FoundAttention FindAttention(AttentionBackend wanted, int gpu, const AttentionDims& dims,
                             DType dtype, bool one_row = false);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_
