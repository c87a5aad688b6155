// A block's part of a product by the tensor cores, for kernels that find their blocks' tiles.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_MMA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_MMA_H_

#include <algorithm>

#include "trainer/ops/cuda/gemm/gemm_block.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {
namespace {

// Four warps share a tile of C, two by two. Its factors come through shared memory in slices of
// kMmaDepth along k, kStages slices at a time: one is multiplied while the next ones arrive.
constexpr int kWarps = 4, kMmaThreads = kWarps * kWarp, kStages = 4, kMmaDepth = 32;
constexpr int kElements = 8;  // Per pack.

// Sums wait in the memory of the slices until they are written to C. The gap between rows puts rows
// that a warp writes together into different banks.
template <int kTile>
constexpr int kSumStride = kTile + 8;
template <int kTile>
constexpr size_t kMmaBytes = std::max(sizeof(uint16_t) * kStages * 2 * kTile * kMmaDepth,
                                      sizeof(float) * kTile * kSumStride<kTile>);

// The place, in packs, of pack `pack` of row `row`. Slices lie as the factor is stored: rows along
// k, or rows of one k. The places put the eight packs that a quarter of LoadMatrices() reads, from
// consecutive rows, into different banks.
template <int kTile, bool kAlongK>
__device__ int PackAt(int row, int pack) {
  if constexpr (kAlongK) {
    return row * (kMmaDepth / kElements) + (pack ^ (row / 2 % 4));
  } else {
    return row * (kTile / kElements) + (pack ^ (row % 8));
  }
}

// The slice that begins at stored element (row, col) of a factor of rows x cols; beyond it zeros.
template <typename T, int kTile, bool kAlongK, bool kCollects>
__device__ void LoadSlice(const GemmTensor& x, int64_t rows, int64_t cols, int64_t row, int64_t col,
                          T* shared) {
  constexpr int kPacks = (kAlongK ? kMmaDepth : kTile) / kElements;  // Per row.
#pragma unroll
  for (int i = 0; i < kTile * kMmaDepth / kElements / kMmaThreads; ++i) {
    const int index = i * kMmaThreads + static_cast<int>(threadIdx.x);
    const int r = index / kPacks, pack = index % kPacks;
    const int64_t left = row + r < rows ? cols - col - pack * kElements : 0;
    const int n = left < 0 ? 0 : left < kElements ? static_cast<int>(left) : kElements;
    const T* from = static_cast<const T*>(x.data);
    if (n > 0) from += StoredRow<kCollects>(x, row + r) * x.stride + col + pack * kElements;
    T* to = shared + PackAt<kTile, kAlongK>(r, pack) * kElements;
    if (x.packs) {
      CopyAsync(to, from, n * static_cast<int>(sizeof(T)));
    } else {
      Pack<T> elements;
#pragma unroll
      for (int e = 0; e < kElements; ++e) elements.at[e] = e < n ? from[e] : FromFloat<T>(0);
      *reinterpret_cast<Pack<T>*>(to) = elements;
    }
  }
}

// Four 8 x 8 matrices of a slice, two by two: rows of the tile from `first` on, k from 16 step on.
// `k_first`: the second matrix is the next along k, else the next of the tile's rows.
template <typename T, int kTile, bool kAlongK>
__device__ void LoadFragments(const T* slice, int first, int step, bool k_first,
                              uint32_t (&fragments)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int second = lane / 8 % 2, third = lane / 16;
  const int along_k = k_first ? second : third, along_tile = k_first ? third : second;
  if constexpr (kAlongK) {
    const int row = first + 8 * along_tile + lane % 8, pack = 2 * step + along_k;
    LoadMatrices(fragments, slice + PackAt<kTile, kAlongK>(row, pack) * kElements);
  } else {
    const int row = 16 * step + 8 * along_k + lane % 8, pack = first / kElements + along_tile;
    LoadMatricesTransposed(fragments, slice + PackAt<kTile, kAlongK>(row, pack) * kElements);
  }
}

// A block's tile of C. kCollects: factors may have rows.
template <typename T, int kTile, bool kTransposedA, bool kTransposedB, bool kCollects>
__device__ void MultiplyByMma(const GemmArgs& args, const GemmCorner& corner) {
  constexpr bool kAAlongK = !kTransposedA, kBAlongK = kTransposedB;
  constexpr int kSlice = kTile * kMmaDepth, kPart = kTile / 2;  // A warp's part is kPart x kPart.
  T* const shared = DynamicShared<T>();
  const auto a_slice = [&](int stage) { return shared + stage * 2 * kSlice; };
  const auto b_slice = [&](int stage) { return shared + stage * 2 * kSlice + kSlice; };
  const int slices = static_cast<int>(CeilDiv(args.k, kMmaDepth));
  const auto load = [&](int slice) {
    const int64_t k = int64_t{kMmaDepth} * slice;
    T *const a = a_slice(slice % kStages), *const b = b_slice(slice % kStages);
    if constexpr (kAAlongK) {
      LoadSlice<T, kTile, true, kCollects>(args.a, args.m, args.k, corner.row, k, a);
    } else {
      LoadSlice<T, kTile, false, kCollects>(args.a, args.k, args.m, k, corner.row, a);
    }
    if constexpr (kBAlongK) {
      LoadSlice<T, kTile, true, kCollects>(args.b, args.n, args.k, corner.col, k, b);
    } else {
      LoadSlice<T, kTile, false, kCollects>(args.b, args.k, args.n, k, corner.col, b);
    }
  };

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = warp / 2 * kPart, col = warp % 2 * kPart;
  float sums[kPart / 16][kPart / 8][4] = {};
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < slices) load(stage);
    CommitCopies();
  }
  for (int slice = 0; slice < slices; ++slice) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // The slice is there for all, and all are done with the one before.
    if (slice + kStages - 1 < slices) load(slice + kStages - 1);
    CommitCopies();
    const T *const a = a_slice(slice % kStages), *const b = b_slice(slice % kStages);
#pragma unroll
    for (int step = 0; step < kMmaDepth / 16; ++step) {
      uint32_t a_parts[kPart / 16][4], b_parts[kPart / 8][2];
#pragma unroll
      for (int i = 0; i < kPart / 16; ++i) {
        LoadFragments<T, kTile, kAAlongK>(a, row + 16 * i, step, /*k_first=*/false, a_parts[i]);
      }
#pragma unroll
      for (int j = 0; j < kPart / 8; j += 2) {
        uint32_t two[4];
        LoadFragments<T, kTile, kBAlongK>(b, col + 8 * j, step, /*k_first=*/true, two);
        b_parts[j][0] = two[0], b_parts[j][1] = two[1];
        b_parts[j + 1][0] = two[2], b_parts[j + 1][1] = two[3];
      }
#pragma unroll
      for (int i = 0; i < kPart / 16; ++i) {
#pragma unroll
        for (int j = 0; j < kPart / 8; ++j) Mma<T>(sums[i][j], a_parts[i], b_parts[j]);
      }
    }
  }

  // By way of shared memory: C's rows are written by packs, whole.
  constexpr int kStride = kSumStride<kTile>;
  float* const out = DynamicShared<float>();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPart / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      float* at = out + (row + 16 * i + lane / 4) * kStride + col + 8 * j + lane % 4 * 2;
      *reinterpret_cast<Pack<float, 2>*>(at) = {sums[i][j][0], sums[i][j][1]};
      *reinterpret_cast<Pack<float, 2>*>(at + 8 * kStride) = {sums[i][j][2], sums[i][j][3]};
    }
  }
  __syncthreads();
  constexpr int kPacks = kTile / kElements;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kMmaThreads) {
    const int r = i / kPacks, c = i % kPacks * kElements;
    float eight[kElements];
    ReadElements(out + r * kStride + c, /*packs=*/true, kElements, eight);
    FinishSums(args, corner.row + r, corner.col + c, eight);
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_MMA_H_
