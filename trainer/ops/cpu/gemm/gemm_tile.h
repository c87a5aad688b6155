// The innermost loop of Gemm(), for sources that are compiled once for each instruction set
// (isa.h). Each source defines its own elements of a factor.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILE_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILE_H_

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "trainer/ops/cpu/gemm/gemm_strip.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// kLanes floats per vector, kVectors vectors per row, at most kMaxRows rows per tile. Registers in
// use: kMaxRows kVectors sums, kVectors of B and one of A.
#ifdef __AVX512F__
constexpr int kLanes = 16, kVectors = 3, kMaxRows = 8;  // 28 of 32.
#else
constexpr int kLanes = 8, kVectors = 2, kMaxRows = 6;  // 15 of 16.
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int Bits __attribute__((vector_size(kLanes * 4)));
constexpr int kCols = kLanes * kVectors;

FSDP_ALWAYS_INLINE Vector Load(const void* from) {  // Not aligned.
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

FSDP_ALWAYS_INLINE void Store(float* to, Vector v) { __builtin_memcpy(to, &v, sizeof(v)); }

// The first `lanes` of a vector, 0 < lanes <= kLanes; the memory behind them is not touched.
#ifdef __AVX512F__
FSDP_ALWAYS_INLINE Vector LoadFirst(const float* from, int64_t lanes) {
  return (Vector)_mm512_maskz_loadu_ps((1u << lanes) - 1, from);
}
FSDP_ALWAYS_INLINE void StoreFirst(float* to, Vector v, int64_t lanes) {
  _mm512_mask_storeu_ps(to, (1u << lanes) - 1, (__m512)v);
}
#else
FSDP_ALWAYS_INLINE __m256i First(int64_t lanes) {
  return (__m256i)(Bits{0, 1, 2, 3, 4, 5, 6, 7} < (static_cast<int>(lanes) - Bits{}));
}
FSDP_ALWAYS_INLINE Vector LoadFirst(const float* from, int64_t lanes) {
  return (Vector)_mm256_maskload_ps(from, First(lanes));
}
FSDP_ALWAYS_INLINE void StoreFirst(float* to, Vector v, int64_t lanes) {
  _mm256_maskstore_ps(to, First(lanes), (__m256)v);
}
#endif

// Stores a tile's sums.
template <int kRows, int kVectors_>
FSDP_ALWAYS_INLINE void Finish(const GemmStrip& s, int64_t col, int64_t cols,
                               Vector (&sum)[kRows][kVectors_]) {
  float* const c = s.c + col;
  const float* bias = s.bias == nullptr ? nullptr : s.bias + col;
  const float* added = s.added == nullptr ? nullptr : s.added + col;
  const int64_t last = cols - (kVectors_ - 1) * kLanes;
  const auto finish = [&](int r, int v, auto cut) __attribute__((always_inline)) {
    const auto load = [&](const float* from) __attribute__((always_inline)) {
      return cut.value && v == kVectors_ - 1 ? LoadFirst(from, last) : Load(from);
    };
    Vector value = s.alpha * sum[r][v];
    asm("" : "+v"(value));  // Rounded here, not fused with the additions below.
    if (s.add) value += load(c + r * s.c_row + v * kLanes);
    if (bias != nullptr) value += load(bias + v * kLanes);
    if (added != nullptr) value += load(added + r * s.c_row + v * kLanes);
    return value;
  };
  if (last == kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors_; ++v) {
        Store(c + r * s.c_row + v * kLanes, finish(r, v, std::false_type()));
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors_; ++v) sum[r][v] = finish(r, v, std::true_type());
  }
  // Stores of a part of a vector are slow. Where rows of C lie behind one another, a row is stored
  // whole: what it writes of the rows behind it is written again.
  const int64_t behind = s.c_row == cols ? kLanes - last : kRows * cols;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* const row = c + r * s.c_row;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors_ - 1; ++v) Store(row + v * kLanes, sum[r][v]);
    float* const end = row + (kVectors_ - 1) * kLanes;
    const Vector value = sum[r][kVectors_ - 1];
    behind <= (kRows - 1 - r) * cols ? Store(end, value) : StoreFirst(end, value, last);
  }
}

// Factor defines the 4 bytes of a factor: MulAdd() is sum + left right, one step of k.
//
// One tile, of kVectors_ vectors per row: columns [col, col + cols) of the strip.
template <typename Factor, int kRows, int kVectors_, bool kUnitK>
inline void Tile(const GemmStrip& s, int64_t col, int64_t cols) {
  const int64_t a_row = kUnitK ? s.a_row : 4, a_k = kUnitK ? 4 : s.a_k;
  const char* a = s.a;
  const char* b = s.b + col / kCols * s.b_tile;
  // LastTile() leaves no vector empty, but the last one of a row may be cut.
  const int64_t last = cols - (kVectors_ - 1) * kLanes;
  Vector sum[kRows][kVectors_] = {};
  const auto add_terms = [&](int64_t terms, auto cut) __attribute__((always_inline)) {
    for (int64_t l = 0; l < terms; ++l, a += a_k, b += s.b_k) {
      Vector right[kVectors_];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors_; ++v) {
        const auto* from = reinterpret_cast<const float*>(b) + v * kLanes;
        right[v] = cut.value && v == kVectors_ - 1 ? LoadFirst(from, last) : Load(from);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int one;  // Bits: a pair is no float.
        __builtin_memcpy(&one, a + r * a_row, sizeof(one));
        Vector left = (Vector)(one - Bits{});
        asm("" : "+v"(left));  // One load a row: as an operand of each sum it would be kVectors.
#pragma GCC unroll 4
        for (int v = 0; v < kVectors_; ++v) sum[r][v] = Factor::MulAdd(left, right[v], sum[r][v]);
      }
    }
  };
  if constexpr (!kUnitK) {
    if (s.b_ends && last < kLanes) {
      add_terms(s.k, std::true_type());
      return Finish<kRows, kVectors_>(s, col, cols, sum);
    }
  }
  // Meanwhile C, the tile's share of A's next strip and of the next B are prefetched: little by
  // little, because the loads of B wait behind all that waits for memory.
  constexpr int64_t kLine = 16, kLines = kRows * kCols / kLine;  // Lines of C.
  const int64_t steps = s.k / kLine, lines_a_step = steps == 0 ? 0 : (kLines + steps - 1) / steps;
  const int64_t tiles = (s.cols + kCols - 1) / kCols, rows_apart = tiles * s.next_row;
  const char* next = s.next == nullptr ? nullptr : s.next + col / kCols * s.next_row;
  const char* next_end = s.next == nullptr ? nullptr : s.next + s.next_rows * s.next_row;
  const char* const soon_end = s.soon.at + s.soon.rows * s.soon.row;
  float* c_row = s.c + col;
  int64_t line = 0;
  for (int64_t l = 0; l < steps; ++l) {
    for (const char* row = next; row < next_end; row += rows_apart) {
      __builtin_prefetch(row + l * kLine * s.next_element, 0, 2);
    }
    const char* row = l < s.soon.lines ? s.soon.at + col / kCols * s.soon.row : soon_end;
    for (; row < soon_end; row += tiles * s.soon.row) __builtin_prefetch(row + l * 64, 0, 2);
    for (int64_t i = 0; i < lines_a_step && line < kLines; ++i, ++line) {
      __builtin_prefetch(c_row + line % (kCols / kLine) * kLine, 1);
      if (line % (kCols / kLine) == kCols / kLine - 1) c_row += s.c_row;
    }
    add_terms(kLine, std::false_type());
  }
  add_terms(s.k - steps * kLine, std::false_type());
  Finish<kRows, kVectors_>(s, col, cols, sum);
}

// The last columns, with as few vectors as they need.
template <typename Factor, int kRows, int kVectors_, bool kUnitK>
__attribute__((noinline)) void LastTile(const GemmStrip& s, int64_t col) {
  if constexpr (kVectors_ > 1) {
    if (s.cols - col <= (kVectors_ - 1) * kLanes) {
      return LastTile<Factor, kRows, kVectors_ - 1, kUnitK>(s, col);
    }
  }
  Tile<Factor, kRows, kVectors_, kUnitK>(s, col, s.cols - col);
}

template <typename Factor, int kRows, bool kUnitK>
void Tiles(const GemmStrip& s) {
  int64_t col = 0;
  for (; col + kCols <= s.cols; col += kCols) Tile<Factor, kRows, kVectors, kUnitK>(s, col, kCols);
  if (col < s.cols) LastTile<Factor, kRows, kVectors, kUnitK>(s, col);
}

template <typename Factor, int kRows = kMaxRows>
void RunStrip(const GemmStrip& s) {
  if (s.rows < kRows) {
    if constexpr (kRows > 1) return RunStrip<Factor, kRows - 1>(s);
  } else if (s.a_k == 4) {
    Tiles<Factor, kRows, true>(s);
  } else {
    Tiles<Factor, kRows, false>(s);
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILE_H_
