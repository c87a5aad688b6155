// Attention (attention.h) by cuDNN's kernels: the calls that they take, the memory that these get,
// and whether a run can have them. Calls and memory are functions of shape and dtype alone, so a
// plan needs neither GPU nor cuDNN.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_CUDNN_H_

#include <cstdint>
#include <string>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// bf16 and fp16, a head_dim that is a multiple of 8 and at most 128, at least one row.
// Deterministic calls are taken only while seq^2 costs less than a GiB.
bool TakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype);
// Whether cuDNN takes its backward, too: it has none for one token.
bool BackwardTakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype);

// Bytes of the parts, which follow each other; each is a multiple of 256.
struct CudnnWorkspace {
  int64_t plan = 0;      // The own workspace of a cuDNN plan.
  int64_t row_dots = 0;  // dout . out: [batch, heads, seq] floats.
  int64_t dq = 0;        // [batch, heads, seq, head_dim] floats, to be rounded to dq.

  int64_t bytes() const { return plan + row_dots + dq; }
};

// Exactly as much as plans of cuDNN 9.19 for an H100 need;
// tests/trainer/ops/cudnn/attention_plan_test.cc compares them. A plan that needs more, such as an
// A100's, is not taken: the run then uses our own kernels.
CudnnWorkspace CudnnForwardWorkspace(const AttentionDims& dims);
// With fewer heads of keys than of queries it includes dk and dv of all heads of q, in the dtype of
// q, which cuDNN then adds up. `deterministic`: the gradients of all scores, in place of the sums
// for dq.
CudnnWorkspace CudnnBackwardWorkspace(const AttentionDims& dims, bool deterministic);

// For calls that pass TakenByCudnn(). A thread keeps a handle and its plans
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
