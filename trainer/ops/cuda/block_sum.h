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

// gradient[j] += the sum of column j over `count` rows of `partial`, `stride` floats apart.
// Neighbouring rows are summed in order, then these sums are.
inline constexpr int kSumShares = 16;
inline dim3 ColumnSumsBlock() { return dim3(kWarp, kSumShares); }
inline dim3 ColumnSumsGrid(int64_t cols) {
  return dim3(static_cast<unsigned>(CeilDiv(cols, kWarp)));
}
template <typename G>
__device__ inline void AddColumnSums(const float* partial, int64_t count, int64_t stride,
                                     int64_t cols, G* gradient) {
  __shared__ float of_shares[kSumShares][kWarp];
  const int64_t col = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const int64_t share = threadIdx.y;
  float sum = 0;
  if (col < cols) {
    const int64_t end = count * (share + 1) / kSumShares;
#pragma unroll 8
    for (int64_t i = count * share / kSumShares; i < end; ++i) sum += partial[i * stride + col];
  }
  of_shares[share][threadIdx.x] = sum;
  __syncthreads();
  if (share > 0 || col >= cols) return;
  for (int i = 1; i < kSumShares; ++i) sum += of_shares[i][threadIdx.x];
  gradient[col] = FromFloat<G>(ToFloat(gradient[col]) + sum);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BLOCK_SUM_H_
