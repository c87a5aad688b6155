// Sums the gradient of a bias by head and bucket (attention.h), from the sums of ds by distance.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_BUCKETS_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_BUCKETS_H_

#include <cstdint>

#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {

inline constexpr int kBucketThreads = 128;

// dbias of the block's head and bucket. sums: [batch, heads, distances].
template <typename T>
__device__ inline void SumBucket(const BiasCuda<T>& bias, const float* sums, int batch, int heads,
                                 T* dbias) {
  __shared__ float shared[kBucketThreads / kWarp];
  const int head = static_cast<int>(blockIdx.x) / bias.columns;
  const int bucket = static_cast<int>(blockIdx.x) % bias.columns;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x); d < bias.distances; d += kBucketThreads) {
    if (bias.buckets[d] != bucket) continue;
    for (int b = 0; b < batch; ++b) {
      const int64_t row = static_cast<int64_t>(b) * heads + head;
      sum += sums[row * bias.distances + d];
    }
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) dbias[blockIdx.x] = FromFloat<T>(sum);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_BUCKETS_H_
