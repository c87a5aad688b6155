// The calls of attention that cuDNN computes, and the memory that they get. Both are functions of
// shape and dtype alone, so a plan needs neither GPU nor cuDNN.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_

#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_
