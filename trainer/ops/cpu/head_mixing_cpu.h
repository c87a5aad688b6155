// The mixing of heads (attention_math.h).
// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_MIXING_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_MIXING_CPU_H_

#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void MixHeadsCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                 const HeadMixing& mixing, const ConstView& probabilities, const View& weights);
// dw becomes dp, in place. `sums`: the sums of all parts.
void MixHeadsBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                         const HeadMixing& mixing, const ConstView& probabilities, const View& dw,
                         float* sums, const HeadMixingGradients& gradients);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_MIXING_CPU_H_
