// The softmax of a row of logits that one block handles, for the kernels of losses.
// Tests: tests/trainer/ops/head_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ROW_SOFTMAX_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ROW_SOFTMAX_H_

#include <cfloat>

#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"

namespace fsdp {

inline constexpr int kMostLossThreads = 512;  // A block handles one row.

inline constexpr float kLog2E = 1.4426950408889634f;

// The softmax of the logits so far, as a sum of powers of two that is counted in units of 2^shift.
// `shift` is kLog2E times the maximum, rounded. It is finite from the start, so a logit of minus
// infinity counts as nothing. While the maximum stays, the sum is multiplied by exactly 1.
struct RunningSum {
  float max = -FLT_MAX, shift = -FLT_MAX, sum = 0;

  // Adds n more logits, the first `count` of `pack`.
  template <typename T, int n>
  __device__ void Add(const Elements<T, n>& pack, int count = n) {
    const float before = shift;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      if (e < count) max = fmaxf(max, pack[e]);
    }
    shift = fmaxf(-FLT_MAX, __fmul_rn(max, kLog2E));
    sum *= exp2f(before - shift);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      if (e < count) sum += exp2f(__fmaf_rn(pack[e], kLog2E, -shift));
    }
  }
};

// The softmax of the whole row.
struct RowSoftmax {
  float shift;
  double sum;

  __device__ float Power(float logit) const { return exp2f(__fmaf_rn(logit, kLog2E, -shift)); }
  // -log of the logit's share of the sum.
  __device__ double NegativeLog(float logit) const {
    return log(sum) + (shift / static_cast<double>(kLog2E) - logit);
  }
};

// Shared memory of SoftmaxOfBlock().
struct RowSoftmaxShared {
  float maxima[kMostLossThreads / kWarp];
  double sums[kMostLossThreads / kWarp];
};

// Joins all threads' sums to the row's softmax. Every thread calls it and gets the result.
// `shared`: used by nobody else.
__device__ inline RowSoftmax SoftmaxOfBlock(const RunningSum& mine, RowSoftmaxShared& shared) {
  const float shift = fmaxf(-FLT_MAX, __fmul_rn(BlockMax(mine.max, shared.maxima), kLog2E));
  return {shift, BlockSum(static_cast<double>(mine.sum * exp2f(mine.shift - shift)), shared.sums)};
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ROW_SOFTMAX_H_
