// A thread's elements: a few neighbours, read and written with as few accesses as their address
// allows, and used as floats. Also grids whose threads handle such pieces of rows.
// Tests: tests/trainer/ops/elementwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTS_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTS_H_

#include <cuda_runtime.h>

#include <algorithm>

#include "trainer/core/view.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {

// Words in memory, whatever type their memory has.
template <int n>
struct alignas(4 * n) [[gnu::may_alias]] Words {
  uint32_t at[n];
};

// n elements, of which a row may have only the first `count`: the others are zero, and not written.
// `packs`: their address allows accesses of 16 bytes; see InPacks(). They are kept as words,
// because an element of two bytes would take a register of its own.
template <typename T, int n>
struct Elements {
  static constexpr int kInWord = 4 / sizeof(T);
  static constexpr int kWords = n / kInWord;
  static constexpr int kAtOnce = std::min(kWords, 4);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

  uint32_t words[kWords];

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    } else if constexpr (sizeof(T) == 2) {
      return ToFloat(__builtin_bit_cast(T, static_cast<Bits>(words[i / 2] >> (i % 2 * 16))));
    } else {
      return __uint_as_float(words[i]);
    }
  }
  // Sets all of them.
  __device__ void Set(const float (&values)[n]) {
#pragma unroll
    for (int i = 0; i < n; i += kInWord) SetWord(i, [&](int j) { return FromFloat<T>(values[j]); });
  }

  __device__ void Read(const T* from, int64_t count, bool packs) {
    if (packs && count >= n) {
#pragma unroll
      for (int i = 0; i < kWords; i += kAtOnce) {
        const auto pack = *reinterpret_cast<const Words<kAtOnce>*>(from + i * kInWord);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) words[i + j] = pack.at[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; i += kInWord) {
        SetWord(i, [&](int j) { return j < count ? from[j] : T{}; });
      }
    }
  }

  // Reads pack number `pack`, whole, of a tensor that passes InPacks().
  __device__ void ReadPack(const T* tensor, int pack) {
    static_assert(n == kPack<T>);
    const auto from = reinterpret_cast<const Words<kWords>*>(tensor)[pack];
#pragma unroll
    for (int j = 0; j < kWords; ++j) words[j] = from.at[j];
  }
  __device__ void WritePack(T* tensor, int pack) const {
    static_assert(n == kPack<T>);
    Words<kWords> to;
#pragma unroll
    for (int j = 0; j < kWords; ++j) to.at[j] = words[j];
    reinterpret_cast<Words<kWords>*>(tensor)[pack] = to;
  }

  __device__ void Write(T* to, int64_t count, bool packs) const {
    if (packs && count >= n) {
#pragma unroll
      for (int i = 0; i < kWords; i += kAtOnce) {
        Words<kAtOnce> pack;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) pack.at[j] = words[i + j];
        *reinterpret_cast<Words<kAtOnce>*>(to + i * kInWord) = pack;
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const uint32_t bits = words[i / kInWord] >> (i % kInWord * 16);
        if (i < count) to[i] = __builtin_bit_cast(T, static_cast<Bits>(bits));
      }
    }
  }

 private:
  // Sets the word with elements i on; each is value(its index).
  template <typename Value>
  __device__ void SetWord(int i, const Value& value) {
    uint32_t word = __builtin_bit_cast(Bits, value(i));
    if constexpr (kInWord == 2) word |= uint32_t{__builtin_bit_cast(Bits, value(i + 1))} << 16;
    words[i / kInWord] = word;
  }
};

// Whether all rows of elements, `stride` elements apart, begin where accesses of 16 bytes are
// allowed.
template <typename T>
bool InPacks(const T* data, int64_t stride) {
  return IsAligned(data) && stride % kPack<T> == 0;
}

// A parameter beside activations of T. It has the type T or fp32.
template <typename T>
struct DeviceWeight {
  const void* data;
  bool is_float;

  // Elements from `first` on, as floats; those behind `count` are zero.
  template <int n>
  __device__ void Read(int64_t first, int64_t count, bool packs, float (&to)[n]) const {
    if (!std::is_same_v<T, float> && is_float) return ReadAs<float>(first, count, packs, to);
    ReadAs<T>(first, count, packs, to);
  }

  __device__ float At(int64_t i) const {
    if (!std::is_same_v<T, float> && is_float) return static_cast<const float*>(data)[i];
    return ToFloat(static_cast<const T*>(data)[i]);
  }

 private:
  template <typename W, int n>
  __device__ void ReadAs(int64_t first, int64_t count, bool packs, float (&to)[n]) const {
    Elements<W, n> elements;
    elements.Read(static_cast<const W*>(data) + first, count, packs);
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = elements[i];
  }
};
template <typename T>
DeviceWeight<T> WeightOf(const ConstView& weight) {
  return {weight.data, weight.dtype == DType::kFloat32};
}

// A grid with a thread for each piece of each row. Neighbouring threads have neighbouring pieces; a
// block has several rows where rows are short.
struct RowGrid {
  dim3 grid, block;
};
inline RowGrid GridOfRows(int64_t rows, int64_t pieces) {
  constexpr unsigned kThreads = 256;
  unsigned along = kWarp;
  while (along < kThreads && along < pieces) along *= 2;
  const unsigned together = kThreads / along;
  return {dim3(static_cast<unsigned>(CeilDiv(rows, together)),
               static_cast<unsigned>(std::min<int64_t>(CeilDiv(pieces, along), 65535))),
          dim3(along, together)};
}

// In a kernel on such a grid: calls body(row, piece) for the pieces of this thread.
template <typename Body>
__device__ inline void ForEachPiece(int64_t rows, int64_t pieces, const Body& body) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t step = int64_t{gridDim.y} * blockDim.x;
  for (int64_t piece = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; piece < pieces;
       piece += step) {
    body(row, piece);
  }
}

// Whether a number is finite, by its bits, for kernels: -0.0 and subnormal numbers count as finite.
__device__ inline bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTS_H_
