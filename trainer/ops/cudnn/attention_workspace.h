// Which calls of attention are cuDNN's, and the memory that they get: functions of shape and dtype
// alone, so that a plan needs neither GPU nor cuDNN.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_

#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"

namespace fsdp {

// bf16 and fp16, a head_dim that is a multiple of 8 and at most 128, at least one row. Where bits
// must not differ, as long as seq^2 costs less than a GiB.
bool TakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype);
// Its backward, too: of more than one token, of which cuDNN has none.
bool BackwardTakenByCudnn(AttentionBackend backend, const AttentionDims& dims, DType dtype);

// Bytes of its parts, one behind the other, each a multiple of 256.
struct CudnnWorkspace {
  int64_t plan = 0;      // What a plan of cuDNN's may want for itself.
  int64_t row_dots = 0;  // dout . out: [batch, heads, seq] floats.
  int64_t dq = 0;        // [batch, heads, seq, head_dim] floats, to be rounded to dq.

  int64_t bytes() const { return plan + row_dots + dq; }
};

// As much as plans for an H100 want of cuDNN 9.19, to the byte, which
// tests/trainer/ops/cudnn/attention_plan_test.cc holds them to. One that wants more, an A100's say,
// is not taken: the run then goes on with our own kernels.
CudnnWorkspace CudnnForwardWorkspace(const AttentionDims& dims);
// With fewer heads of keys than of queries: dk and dv of all heads of q, in the dtype of q, which
// cuDNN then adds up. `deterministic`: the gradients of all scores, in place of the sums for dq.
CudnnWorkspace CudnnBackwardWorkspace(const AttentionDims& dims, bool deterministic);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_ATTENTION_WORKSPACE_H_
