// The common part of a product's kernels: their arguments, the order of their blocks, and the steps
// from sums to C.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_BLOCK_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_BLOCK_H_

#include "trainer/ops/cuda/gelu_element.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// Stored rows. `packs`: all packs of the rows may be read and written as such. Each kernel says the
// number of elements in a pack.
struct GemmTensor {
  void* data;  // Null: no such matrix.
  int64_t stride;
  DType dtype;
  bool transposed;
  bool packs;
  const int32_t* rows;  // Where not null, stored row i is row rows[i]: for kernels that collect.
};

struct GemmArgs {
  int64_t m, n, k;
  GemmTensor a, b, c;
  GemmTensor bias;  // One row.
  GemmTensor added, gelu, gelu_of;
  float scale;
};

// `pack`: elements that a kernel reads or writes at once, 16 bytes at most.
inline GemmTensor GemmMatrix(const void* data, int64_t stride, DType dtype, int pack,
                             bool transposed = false) {
  const int64_t bytes = std::min<int64_t>(16, pack * SizeOf(dtype));
  const bool packs =
      reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * SizeOf(dtype) % bytes == 0;
  return {const_cast<void*>(data), stride, dtype, transposed, packs, nullptr};
}

// The place of a stored row.
template <bool kCollects>
__device__ inline int64_t StoredRow(const GemmTensor& x, int64_t row) {
  return kCollects && x.rows != nullptr ? x.rows[row] : row;
}

// The corner of a block's tile, kTile x kTile, in C.
struct GemmCorner {
  int64_t row, col;
};
// Blocks that run at the same time share rows of A and columns of B in the second-level cache:
// their order goes down eight tiles before it goes right.
template <int kTile>
__device__ inline GemmCorner CornerOf(int block, const GemmArgs& args) {
  constexpr int kDown = 8;
  const int down = static_cast<int>(CeilDiv(args.m, kTile));
  const int right = static_cast<int>(CeilDiv(args.n, kTile));
  const int first = block / (kDown * right) * kDown, within = block % (kDown * right);
  const int height = down - first < kDown ? down - first : kDown;
  return {int64_t{kTile} * (first + within % height), int64_t{kTile} * (within / height)};
}

// Reads the first n of kCount elements as floats, and zeros for the others.
template <typename T, int kCount>
__device__ inline void ReadElements(const T* from, bool packs, int n, float (&to)[kCount]) {
  constexpr int kEach = kCount < kPack<T> ? kCount : kPack<T>;
  if (packs && n == kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += kEach) {
      const auto pack = *reinterpret_cast<const Pack<T, kEach>*>(from + i);
#pragma unroll
      for (int e = 0; e < kEach; ++e) to[i + e] = ToFloat(pack.at[e]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = i < n ? ToFloat(from[i]) : 0.0f;
  }
}
template <typename T, int kCount>
__device__ inline void WriteElements(const float (&from)[kCount], bool packs, int n, T* to) {
  constexpr int kEach = kCount < kPack<T> ? kCount : kPack<T>;
  if (packs && n == kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += kEach) {
      Pack<T, kEach> pack;
#pragma unroll
      for (int e = 0; e < kEach; ++e) pack.at[e] = FromFloat<T>(from[i + e]);
      *reinterpret_cast<Pack<T, kEach>*>(to + i) = pack;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < n) to[i] = FromFloat<T>(from[i]);
    }
  }
}

// Calls f(pointer to element (row, col)) with the matrix's own element type.
template <typename Function>
__device__ inline void AtElement(const GemmTensor& x, int64_t row, int64_t col, const Function& f) {
  const int64_t at = row * x.stride + col;
  if (x.dtype == DType::kFloat32) {
    f(static_cast<float*>(x.data) + at);
  } else if (x.dtype == DType::kBFloat16) {
    f(static_cast<__nv_bfloat16*>(x.data) + at);
  } else {
    f(static_cast<__half*>(x.data) + at);
  }
}

// Turns kCount sums into elements of C's row `row`, from column `col` on, a multiple of kCount, as
// far as C has these elements.
template <int kCount>
__device__ inline void FinishSums(const GemmArgs& args, int64_t row, int64_t col,
                                  float (&sums)[kCount]) {
  if (row >= args.m || col >= args.n) return;
  const int n = args.n - col < kCount ? static_cast<int>(args.n - col) : kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] *= args.scale;
  const auto add = [&](const GemmTensor& matrix, int64_t from_row) {
    AtElement(matrix, from_row, col, [&](const auto* from) {
      float terms[kCount];
      ReadElements(from, matrix.packs, n, terms);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += terms[i];
    });
  };
  if (args.bias.data != nullptr) add(args.bias, 0);
  if (args.added.data != nullptr) add(args.added, row);
  AtElement(args.c, row, col, [&](auto* c) {
    using T = std::remove_pointer_t<decltype(c)>;
    if (args.gelu_of.data != nullptr) {
      float u[kCount];
      ReadElements(static_cast<const T*>(args.gelu_of.data) + row * args.gelu_of.stride + col,
                   args.gelu_of.packs, n, u);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums[i] = GeluGradient(u[i], ToFloat(FromFloat<T>(sums[i])));
      }
    }
    WriteElements(sums, args.c.packs, n, c);
    if (args.gelu.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = GeluOf(ToFloat(FromFloat<T>(sums[i])));
    WriteElements(sums, args.gelu.packs, n,
                  static_cast<T*>(args.gelu.data) + row * args.gelu.stride + col);
  });
}

// A product by the tensor cores, for gemm.cu: two factors of bf16 or of fp16, not both transposed.
// `large`: tiles of 128 x 128, else 64 x 64. Packs are of 8 elements.
void GemmByMma(CudaStreamHandle stream, const GemmArgs& args, bool large);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_BLOCK_H_
