// Sums over a warp and a block, in an order that their sizes alone decide.
// Tests: tests/emulated/simt_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_BLOCK_SUM_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_BLOCK_SUM_H_

#include "trainer/ops/cuda/launch.h"

namespace fsdp {

// The sum over all 32 lanes. Every lane calls it and gets the sum.
template <typename T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

// The sum over all threads of a block of whole warps, which extends in x alone. Every thread calls
// it and gets the sum. `shared`: a float (T) for each warp, used by nobody else from the call to
// the next barrier. The last barrier is before it returns, so a second sum needs another array or a
// barrier of its own.
template <typename T>
__device__ inline T BlockSum(T value, T* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  T sum = shared[0];
  for (int w = 1; w < warps; ++w) sum += shared[w];
  return sum;
}
__device__ inline float BlockMax(float value, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpMax(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  float most = shared[0];
  for (int w = 1; w < warps; ++w) most = fmaxf(most, shared[w]);
  return most;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BLOCK_SUM_H_
