// Attention (attention.h) by cuDNN's kernels, and whether a run can have them.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_

#include <string>

#include "trainer/core/view.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// For calls that pass TakenByCudnn() (attention_workspace.h). A thread keeps a handle and its plans
// for the GPU that is current when it first calls; the first call of a shape makes its plan.
// Positions are not read. Both throw DeviceError.
void AttentionForwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                           const AttentionInputs& in, const View& out, const View& lse,
                           const View& workspace);
void AttentionBackwardCudnn(CudaStreamHandle stream, const AttentionDims& dims,
                            const AttentionInputs& in, const ConstView& out, const ConstView& lse,
                            const ConstView& dout, const AttentionGradients& gradients,
                            const View& workspace);

// Makes the plans of such calls before the first of them, on the calling thread, which keeps a
// handle from then on. q, k and v must be in one packed tensor, and their gradients in another.
// `one_row`: forward will also run with one row alone. Throws DeviceError.
void PrepareAttentionCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype,
                           bool one_row = false);

// The backend that a run on GPU `gpu` should use when it asks for `wanted`. kOwn where there is no
// cuDNN, or where it lacks kernels for q, k and v of this dtype in one packed tensor. kCudnnForward
// where its backward is wrong for this length.
struct FoundAttention {
  AttentionBackend backend = AttentionBackend::kOwn;
  // For people: "cuDNN 9.19.0", "cuDNN 9.10.2, backward by own kernels (why)", "own kernels (why)".
  std::string name;
};
FoundAttention FindAttention(AttentionBackend wanted, int gpu, const AttentionDims& dims,
                             DType dtype, bool one_row = false);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_
