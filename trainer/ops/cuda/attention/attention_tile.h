// Rows of heads as tiles in shared memory, and the layout of a warp's results in its lanes.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_TILE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_TILE_H_

#include <cstdint>
#include <type_traits>

#include "trainer/ops/cuda/attention/heads_cuda.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {

// A tile has rows of D elements; those from head_dim on are zero. Each row is followed by 16 bytes
// of padding, so that eight rows, one below the other, lie in different banks.
template <typename T, int D>
inline constexpr int kLd = D + kPack<T>;

// Loads rows [begin, begin + n) of a head; rows that the head does not have become zero. All
// threads of the block call it, and may read the tile after WaitForCopies() and a barrier.
template <int D, int n, typename T>
__device__ inline void LoadTile(T* tile, const HeadRowsCuda<const T>& from, int begin) {
  constexpr int kPacks = D / kPack<T>;
  for (int i = threadIdx.x; i < n * kPacks; i += blockDim.x) {
    const int row = i / kPacks, column = i % kPacks * kPack<T>;
    T* const to = tile + row * kLd<T, D> + column;
    const int elements = begin + row < from.rows ? from.head_dim - column : 0;
    const T* const source = from.data + (begin + row) * from.stride + column;
    if (from.packs) {
      CopyAsync(to, elements > 0 ? source : from.data, elements > 0 ? 16 : 0);
    } else {
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) to[e] = e < elements ? source[e] : FromFloat<T>(0.0f);
    }
  }
}

// Stores a tile that a barrier has shown to all threads.
template <int D, int n, typename T>
__device__ inline void StoreTile(const T* tile, const HeadRowsCuda<T>& to, int begin) {
  constexpr int kPacks = D / kPack<T>;
  for (int i = threadIdx.x; i < n * kPacks; i += blockDim.x) {
    const int row = i / kPacks, column = i % kPacks * kPack<T>;
    const T* const from = tile + row * kLd<T, D> + column;
    const int elements = begin + row < to.rows ? to.head_dim - column : 0;
    T* const target = to.data + (begin + row) * to.stride + column;
    if (to.packs) {
      if (elements > 0)
        *reinterpret_cast<Pack<T>*>(target) = *reinterpret_cast<const Pack<T>*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) {
        if (e < elements) target[e] = from[e];
      }
    }
  }
}

// [16 M, 8 N] floats of one warp, laid out as Mma() has them, whatever the tiles' type. Lane 4 g +
// t holds in [m][n] row 16 m + g, columns 8 n + 2 t and + 1, then the same columns of row + 8.
template <int M, int N>
using Fragments = float[M][N][4];

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline int RowOf(int m, int e) { return 16 * m + Lane() / 4 + 8 * (e / 2); }
__device__ inline int ColumnOf(int n, int e) { return 8 * n + 2 * (Lane() % 4) + e % 2; }

// tile[i][j] = factor sum[i][j], rounded; `factor` has one for each row of the lane.
template <int D, typename T, int M, int N>
__device__ inline void RoundInto(T* tile, const Fragments<M, N>& sum, const float (&factor)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float first = factor[m][e / 2] * sum[m][n][e];
        const float second = factor[m][e / 2] * sum[m][n][e + 1];
        T* const to = tile + RowOf(m, e) * kLd<T, D> + ColumnOf(n, e);
        if constexpr (std::is_same_v<T, float>) {
          *reinterpret_cast<Pack<float, 2>*>(to) = {{first, second}};
        } else {
          *reinterpret_cast<uint32_t*>(to) = PackPair<T>(first, second);
        }
      }
    }
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_TILE_H_
