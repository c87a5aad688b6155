// Tests: tests/trainer/ops/attention_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_MATH_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_MATH_CPU_H_

#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void AttentionMathForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                             const HeadMixing& mixing, const View& probabilities,
                             const View& weights, const View& out);
void AttentionMathBackwardCpu(ThreadPool& pool, const AttentionDims& dims,
                              const AttentionInputs& in, const HeadMixing& mixing,
                              const ConstView& probabilities, const ConstView& weights,
                              const ConstView& dout, const AttentionGradients& gradients,
                              const HeadMixingGradients& mixing_gradients,
                              const AttentionMathWorkspace& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_MATH_CPU_H_
