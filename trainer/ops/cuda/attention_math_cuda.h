// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_MATH_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_MATH_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void AttentionMathForwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                            const AttentionInputs& in, const HeadMixing& mixing,
                                            const View& probabilities, const View& weights,
                                            const View& out);
[[gnu::weak]] void AttentionMathBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                             const AttentionInputs& in, const HeadMixing& mixing,
                                             const ConstView& probabilities,
                                             const ConstView& weights, const ConstView& dout,
                                             const AttentionGradients& gradients,
                                             const HeadMixingGradients& mixing_gradients,
                                             const AttentionMathWorkspace& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_MATH_CUDA_H_
