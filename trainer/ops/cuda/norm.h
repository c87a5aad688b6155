// The common part of the norms' kernels: the place of a block's threads on rows, and their sums. A
// thread takes the same columns whatever the dtypes and wherever the rows begin, so these do not
// change the order of a sum.
// Tests: tests/trainer/ops/layer_norm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_NORM_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_NORM_H_

#include <algorithm>
#include <limits>

#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/norm_rows.h"

namespace fsdp {

inline constexpr int kNormPiece = 8;            // Columns side by side that a thread takes at once.
inline constexpr int kNormHeld = 2;             // Pieces that it keeps in registers.
inline constexpr int kNormWarps = 512 / kWarp;  // Most warps of a block.
// Where a block has several rows, all of them together have at most this many columns.
inline constexpr int kNormColumnsOfBlock = 256 * kNormPiece * kNormHeld;

// Threads of a block: x along a row, part of a warp or whole ones, at most `most`; y over rows.
inline dim3 NormBlock(int64_t cols, int64_t most) {
  const int64_t held = CeilDiv(cols, kNormPiece * kNormHeld);
  if (held <= 8) return dim3(8, 32);
  if (held <= 16) return dim3(16, 16);
  const auto along = static_cast<unsigned>(std::min<int64_t>(CeilDiv(held, kWarp) * kWarp, most));
  return dim3(along, std::max(1u, 256 / along));
}

// The rows of a tensor: NormRows in the form for kernels.
template <typename T>
struct DeviceRows {
  T* first;
  int64_t inner, stride;
  int cols;

  __device__ T* At(int64_t row) const {
    if (inner == 1) return first + row * stride;
    return first + row / inner * stride + row % inner * cols;
  }
};
template <typename T, typename AnyView>
auto RowsOf(const NormRows<AnyView>& rows, const NormShape& shape) {
  if (shape.cols > std::numeric_limits<int>::max()) throw DeviceError("a norm of 2^31 columns");
  auto* const first = rows.tensor.template As<T>() + rows.first;
  return DeviceRows<std::remove_reference_t<decltype(*first)>>{first, shape.inner, rows.stride,
                                                               static_cast<int>(shape.cols)};
}
template <typename T>
bool InPacks(const DeviceRows<T>& rows) {
  using Element = std::remove_const_t<T>;
  return InPacks<Element>(rows.first, rows.stride) &&
         (rows.inner == 1 || rows.cols % kPack<Element> == 0);
}

// A thread's part of one row of each of n tensors of one shape. Some pieces are held, others are
// read again each time. `cols`: 0 where there is no row.
template <typename T, int n>
struct RowInHand {
  using Piece = Elements<T, kNormPiece>;

  const T* rows[n];
  int cols;
  bool packs;
  Piece held[kNormHeld][n];

  __device__ RowInHand(const T* const (&at)[n], int columns, bool in_packs)
      : cols(columns), packs(in_packs) {
#pragma unroll
    for (int t = 0; t < n; ++t) rows[t] = at[t];
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) ReadAt(First(k), held[k]);
  }
  // Calls body(pieces of the n rows, their first column) for each piece of this thread.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
      if (First(k) < cols) body(held[k], First(k));
    }
#pragma unroll 1
    for (int k = kNormHeld; First(k) < cols; ++k) {
      Piece again[n];
      ReadAt(First(k), again);
      body(again, First(k));
    }
  }

 private:
  __device__ static int First(int k) {
    return static_cast<int>((threadIdx.x + k * blockDim.x) * kNormPiece);
  }
  __device__ void ReadAt(int first, Piece (&pieces)[n]) const {
#pragma unroll
    for (int t = 0; t < n; ++t) pieces[t].Read(rows[t] + first, cols - first, packs);
  }
};

// Sums each of n numbers over the threads of a row, which all get the sums. Every thread of the
// block calls it. `shared`: used by nobody else from the call to the next barrier, which may be
// that of a call with another array.
template <int n>
__device__ inline void SumOverRow(float (&sums)[n], float (&shared)[kNormWarps][n]) {
  const int lanes = min(static_cast<int>(blockDim.x), kWarp);
  for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps <= 1) return;
  const int first = static_cast<int>(threadIdx.y) * warps;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < n; ++i) shared[first + threadIdx.x / kWarp][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < n; ++i) {
    sums[i] = shared[first][i];
    for (int w = 1; w < warps; ++w) sums[i] += shared[first + w][i];
  }
}

// Writes the sums over a block's rows, for n gradients of `cols` columns: gradient g's begin at
// partial + g stride. `sums`: those of this thread's held pieces over the rows that it has handled.
// Every thread of the block calls it.
template <int n>
__device__ inline void PutColumnSums(const float (&sums)[n][kNormHeld][kNormPiece], int64_t cols,
                                     int64_t stride, float* partial) {
  __shared__ float of_rows[kNormColumnsOfBlock];
#pragma unroll
  for (int g = 0; g < n; ++g) {
    float* const to = blockDim.y == 1 ? partial + g * stride : of_rows + threadIdx.y * cols;
#pragma unroll
    for (int k = 0; k < kNormHeld; ++k) {
      const int64_t first = int64_t{threadIdx.x + k * blockDim.x} * kNormPiece;
#pragma unroll
      for (int j = 0; j < kNormPiece; ++j) {
        if (first + j < cols) to[first + j] = sums[g][k][j];
      }
    }
    if (blockDim.y == 1) continue;
    __syncthreads();
    const int64_t thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (int64_t j = thread; j < cols; j += blockDim.x * blockDim.y) {
      float sum = of_rows[j];
      for (int y = 1; y < static_cast<int>(blockDim.y); ++y) sum += of_rows[y * cols + j];
      partial[g * stride + j] = sum;
    }
    __syncthreads();
  }
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

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_NORM_H_
