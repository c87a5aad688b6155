// The mixing of heads (attention_math.h).
// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_HEAD_MIXING_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_HEAD_MIXING_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void MixHeadsCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                const AttentionInputs& in, const HeadMixing& mixing,
                                const View& probabilities, const View& weights);
// dw becomes dp, in place. `sums`: the sums of all parts.
[[gnu::weak]] void MixHeadsBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                        const AttentionInputs& in, const HeadMixing& mixing,
                                        const ConstView& probabilities, const View& dw,
                                        const View& sums, const HeadMixingGradients& gradients);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_HEAD_MIXING_CUDA_H_
