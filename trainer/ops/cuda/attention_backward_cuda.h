// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_BACKWARD_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_BACKWARD_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// workspace: dout . out, [batch, heads, seq] floats; with a bias [batch, heads, distances] more.
[[gnu::weak]] void AttentionBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                         const AttentionInputs& in, const ConstView& out,
                                         const ConstView& lse, const ConstView& dout,
                                         const AttentionGradients& gradients,
                                         const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_BACKWARD_CUDA_H_
