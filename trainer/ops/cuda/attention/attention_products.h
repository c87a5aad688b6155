// Products of tiles by one warp: mma.sync for bf16 and fp16, fused multiply-adds for fp32. Sums are
// fp32, in an order that sizes alone decide.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_PRODUCTS_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_PRODUCTS_H_

#include <cstdint>
#include <type_traits>

#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {

// product[i][j] += sum over D of a[i] b[j], rows of tiles.
template <int D, typename T, int M, int N>
__device__ inline void AddDots(const T* a, const T* b, Fragments<M, N>& product) {
  const int lane = Lane();
  if constexpr (std::is_same_v<T, float>) {
    using Four = Pack<float>;
    a += lane / 4 * kLd<T, D>;
    b += 2 * (lane % 4) * kLd<T, D>;
#pragma unroll 2
    for (int k = 0; k < D; k += 4) {
      Four left[M][2];
#pragma unroll
      for (int m = 0; m < 2 * M; ++m) {
        left[m / 2][m % 2] = *reinterpret_cast<const Four*>(a + 8 * m * kLd<T, D> + k);
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Four right = *reinterpret_cast<const Four*>(b + (8 * n + c) * kLd<T, D> + k);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int m = 0; m < 2 * M; ++m) {
              float& sum = product[m / 2][n][2 * (m % 2) + c];
              sum = __fmaf_rn(left[m / 2][m % 2].at[i], right.at[i], sum);
            }
          }
        }
      }
    }
  } else {
    static_assert(N % 2 == 0);
    a += lane % 16 * kLd<T, D> + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * kLd<T, D> + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      uint32_t left[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) LoadMatrices(left[m], a + 16 * m * kLd<T, D> + k);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        uint32_t right[4];
        LoadMatrices(right, b + 8 * n * kLd<T, D> + k);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          Mma<T>(product[m][n], left[m], {right[0], right[1]});
          Mma<T>(product[m][n + 1], left[m], {right[2], right[3]});
        }
      }
    }
  }
}

// sum[i] += sum over j of p[i][j] b[j], where b is 8 K rows of a tile, from a multiple of 8 columns
// on. For bf16 and fp16, p is rounded to the type of b.
template <int D, typename T, int M, int K, int N>
__device__ inline void AddRows(const Fragments<M, K>& p, const T* b, Fragments<M, N>& sum) {
  const int lane = Lane();
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll 1
      for (int t = 0; t < 4; ++t) {  // From the lane that holds columns 8 k + 2 t and + 1 of p.
        float factors[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            factors[m][e] = __shfl_sync(kAllLanes, p[m][k][e], lane / 4 * 4 + t);
          }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float* const row = b + (8 * k + 2 * t + c) * kLd<T, D> + 2 * (lane % 4);
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const auto two = *reinterpret_cast<const Pack<float, 2>*>(row + 8 * n);
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                sum[m][n][e] = __fmaf_rn(factors[m][e / 2 * 2 + c], two.at[e % 2], sum[m][n][e]);
              }
            }
          }
        }
      }
    }
  } else {
    static_assert(K % 2 == 0 && N % 2 == 0);
    b += lane % 16 * kLd<T, D> + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
      uint32_t left[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = &p[m][k + i / 2][i % 2 * 2];
          left[m][i] = PackPair<T>(two[0], two[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        uint32_t right[4];
        LoadMatricesTransposed(right, b + 8 * k * kLd<T, D> + 8 * n);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          Mma<T>(sum[m][n], left[m], {right[0], right[1]});
          Mma<T>(sum[m][n + 1], left[m], {right[2], right[3]});
        }
      }
    }
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_ATTENTION_PRODUCTS_H_
