// A block's part of a product by multiply-add, for kernels that find their blocks' tiles.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_FMA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_FMA_H_

#include "trainer/ops/cuda/gemm/gemm_block.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {
namespace {

// Products by multiply-add. 16 x 16 threads share a tile of C; each has 4 x 4 elements of each
// quarter (of the whole, where the tile is 64 x 64). Slices of kFmaDepth along k lie in shared
// memory as floats, one k per row. The next slice is loaded while one is multiplied.
constexpr int kSide = 16, kFmaThreads = kSide * kSide, kFmaDepth = 16, kFour = 4;
constexpr int kSpan = kSide * kFour;  // Rows or columns of C that the threads cover at once.

// Rows of a slice begin at packs, and a column's elements are in different banks.
template <int kTile>
constexpr int kSliceStride = kTile + 4;
template <int kTile>  // Two slices of two factors.
constexpr size_t kFmaBytes = sizeof(float) * 2 * 2 * kFmaDepth* kSliceStride<kTile>;

// This thread's packs of a slice: their places and their elements.
template <int kTile>
struct SlicePacks {
  static constexpr int kPacks = kTile * kFmaDepth / kFour / kFmaThreads;
  float at[kPacks][kFour];

  // `along_k`: the factor's rows, as stored, run along k.
  template <typename Body>
  __device__ void ForEach(bool along_k, const Body& body) {
    const int packs = (along_k ? kFmaDepth : kTile) / kFour;  // Per row.
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int index = i * kFmaThreads + static_cast<int>(threadIdx.x);
      body(at[i], index / packs, index % packs * kFour);
    }
  }
  // From tile row `first` and k on, of `size` and `depth`; beyond them zeros.
  template <bool kCollects>
  __device__ void Load(const GemmTensor& x, bool along_k, int64_t first, int64_t size, int64_t k,
                       int64_t depth) {
    const int64_t rows = along_k ? size : depth, cols = along_k ? depth : size;
    ForEach(along_k, [&](float(&four)[kFour], int r, int c) {
      const int64_t row = (along_k ? first : k) + r, col = (along_k ? k : first) + c;
      const int64_t left = row < rows ? cols - col : 0;
      const int n = left < 0 ? 0 : left < kFour ? static_cast<int>(left) : kFour;
      if (n == 0) {
        for (float& element : four) element = 0;
      } else {
        AtElement(x, StoredRow<kCollects>(x, row), col,
                  [&](const auto* from) { ReadElements(from, x.packs, n, four); });
      }
    });
  }
  __device__ void Store(bool along_k, float* slice) {
    ForEach(along_k, [&](const float(&four)[kFour], int r, int c) {
      if (along_k) {
#pragma unroll
        for (int e = 0; e < kFour; ++e) slice[(c + e) * kSliceStride<kTile> + r] = four[e];
      } else {
        WriteElements(four, /*packs=*/true, kFour, slice + r * kSliceStride<kTile> + c);
      }
    });
  }
};

// A block's tile of C. kCollects: factors may have rows.
template <int kTile, bool kCollects>
__device__ void MultiplyByFma(const GemmArgs& args, const GemmCorner& corner) {
  constexpr int kQuarters = kTile / kSpan, kEach = kQuarters * kFour;
  constexpr int kSlice = kFmaDepth * kSliceStride<kTile>;
  float* const shared = DynamicShared<float>();
  const auto a_slice = [&](int slice) { return shared + slice % 2 * 2 * kSlice; };
  const auto b_slice = [&](int slice) { return a_slice(slice) + kSlice; };
  const bool a_along_k = !args.a.transposed, b_along_k = args.b.transposed;
  SlicePacks<kTile> a_packs, b_packs;
  const auto load = [&](int slice) {
    const int64_t k = int64_t{kFmaDepth} * slice;
    a_packs.template Load<kCollects>(args.a, a_along_k, corner.row, args.m, k, args.k);
    b_packs.template Load<kCollects>(args.b, b_along_k, corner.col, args.n, k, args.k);
  };
  const auto store = [&](int slice) {
    a_packs.Store(a_along_k, a_slice(slice));
    b_packs.Store(b_along_k, b_slice(slice));
  };

  const int row = static_cast<int>(threadIdx.x) / kSide * kFour;
  const int col = static_cast<int>(threadIdx.x) % kSide * kFour;
  const int slices = static_cast<int>(CeilDiv(args.k, kFmaDepth));
  float sums[kEach][kQuarters][kFour] = {};
  if (slices > 0) {
    load(0);
    store(0);
  }
  __syncthreads();
  for (int slice = 0; slice < slices; ++slice) {
    if (slice + 1 < slices) load(slice + 1);
    const float *const a_at = a_slice(slice), *const b_at = b_slice(slice);
#pragma unroll
    for (int k = 0; k < kFmaDepth; ++k) {
      float a[kQuarters][kFour], b[kQuarters][kFour];
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) {
        const int at = k * kSliceStride<kTile> + q * kSpan;
        ReadElements(a_at + at + row, /*packs=*/true, kFour, a[q]);
        ReadElements(b_at + at + col, /*packs=*/true, kFour, b[q]);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          float& sum = sums[i][j / kFour][j % kFour];
          sum = __fmaf_rn(a[i / kFour][i % kFour], b[j / kFour][j % kFour], sum);
        }
      }
    }
    if (slice + 1 < slices) store(slice + 1);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      FinishSums(args, corner.row + i / kFour * kSpan + row + i % kFour,
                 corner.col + q * kSpan + col, sums[i][q]);
    }
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_FMA_H_
