// Weights of attention on tiles as factors of bf16, 64 keys by 64 queries at a time, for sources
// that are compiled once for each instruction set (isa.h). No result depends on the width of
// vectors.
//
// Two rows of weights, of keys j and j + 1, become pairs by unpacking within 16 bytes, which leaves
// the queries of a group of 32 in another order: the first tile has the queries 0 to 3, 8 to 11,
// 16 to 19 and 24 to 27, the second one the others (QueryOf). The products' columns keep it.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_WEIGHTS_H_

#include <immintrin.h>

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_bf16_rows.h"
#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 64;  // Queries, and keys, at a time.
constexpr int64_t kGroup = 32;  // Queries of a panel.
using ScoreBlock = TileOf<kBlock, kBlock>;

constexpr float kLog2E = 0x1.715476p0f, kLn2 = 0x1.62e43p-1f;

// The query of a group of 32 whose column is `column`.
constexpr int64_t QueryOf(int64_t column) {
  return column / 16 * 4 + column % 16 / 4 * 8 + column % 4;
}

// x of 32 queries in the order of columns.
FSDP_ALWAYS_INLINE void ToColumns(const float* x, float* to) {
  for (int64_t column = 0; column < kGroup; column += 4) {
    __builtin_memcpy(to + column, x + QueryOf(column), 4 * sizeof(float));
  }
}

// The greater one; `y` where one is NaN.
FSDP_ALWAYS_INLINE Vector Greater(Vector x, Vector y) {
#ifdef __AVX512F__
  return (Vector)_mm512_max_ps((__m512)x, (__m512)y);
#else
  return (Vector)_mm256_max_ps((__m256)x, (__m256)y);
#endif
}

FSDP_ALWAYS_INLINE Vector All(float x) { return x - Vector{}; }

// 2^x for x < 128, with a relative error below 3e-7; exactly zero below -127, NaN for NaN. The
// polynomial is the minimax one of degree 5 for 2^f in [-1/2, 1/2] with a constant of 1.
FSDP_ALWAYS_INLINE Vector Exp2(Vector x) {
  x = Greater(All(-127.0f), x);
  // Adding 1.5 2^23 + 127 rounds to an integer and leaves it, with an exponent's bias, in the low
  // bits: shifted, they are the power of two, and zero for -127.
  constexpr float kRound = 0x1.8p23f + 127;
  const Vector shifted = x + kRound, f = x - (shifted - kRound);
  Vector p = All(1.33335581e-3f);
  p = p * f + 9.61812910e-3f;
  p = p * f + 5.55041086e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147182e-1f;
  p = p * f + 1.0f;
  return p * (Vector)((Bits)shifted << 23);
}

// Two vectors of floats, rounded: the elements of one after those of the other.
typedef uint16_t Halves __attribute__((vector_size(kLanes * 4)));

// By the bits of floats, on any processor.
struct RoundBits {
  static FSDP_ALWAYS_INLINE Halves Two(Vector first, Vector second) {
    typedef uint16_t Half __attribute__((vector_size(kLanes * 2)));
    struct {
      Half first, second;
    } both = {__builtin_convertvector(RoundedToBf16(first) >> 16, Half),
              __builtin_convertvector(RoundedToBf16(second) >> 16, Half)};
    Halves halves;
    __builtin_memcpy(&halves, &both, sizeof(halves));
    return halves;
  }
};

constexpr int64_t kUnitQueries = 2 * kLanes;  // A vector of Halves.

// Keys j (even) and j + 1 of a unit of queries, rounded, as a right factor's pairs of keys:
// [kGroup queries][32 keys] in two tiles each. `query`: the unit's first one, in the block.
FSDP_ALWAYS_INLINE void PutPairs(Halves even, Halves odd, int64_t j, int64_t query, char* pairs) {
#ifdef __AVX512F__
  const Halves low = (Halves)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
  const Halves high = (Halves)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
#else
  const Halves low = (Halves)_mm256_unpacklo_epi16((__m256i)even, (__m256i)odd);
  const Halves high = (Halves)_mm256_unpackhi_epi16((__m256i)even, (__m256i)odd);
#endif
  char* const to = pairs + query / kGroup * (kBlock / kStepK * kStepBytes) +
                   j / kStepK * kStepBytes + j % kStepK / 2 * kTileRow + query % kGroup * 2;
  __builtin_memcpy(to, &low, sizeof(low));
  __builtin_memcpy(to + kTileBytes, &high, sizeof(high));
}

// A block's weights: keys in rows of bf16 [kBlock, kBlock], as a left factor, and in pairs, as a
// right one.
struct alignas(64) WeightRows {
  uint16_t at[kBlock * kBlock];
};
struct alignas(64) WeightPairs {
  char at[kBlock * kBlock * kElement];
};

using Lanes = float[kBlock];
using Square = float[kBlock * kBlock];

// Two rows of a unit's weights.
FSDP_ALWAYS_INLINE void PutRows(Halves even, Halves odd, int64_t j, int64_t q, WeightRows* rows) {
  __builtin_memcpy(rows->at + j * kBlock + q, &even, sizeof(even));
  __builtin_memcpy(rows->at + (j + 1) * kBlock + q, &odd, sizeof(odd));
}

// A block of floats, rounded. `rows`, `pairs`: may be null.
template <typename Rounding>
void PutWeights(const ScoreBlock& block, const float* st, WeightRows* rows, WeightPairs* pairs) {
  for (int64_t q = 0; q < RoundUp(block.queries, kGroup); q += kUnitQueries) {
    for (int64_t j = 0; j < RoundUp(block.keys, kStepK); j += 2) {
      Halves row[2] = {};
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        if (j + odd >= block.keys) break;
        const float* const at = st + (j + odd) * kBlock + q;
        row[odd] = Rounding::Two(LoadVector(at), LoadVector(at + kLanes));
      }
      if (pairs != nullptr) PutPairs(row[0], row[1], j, q, pairs->at);
      if (rows != nullptr) PutRows(row[0], row[1], j, q, rows);
    }
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_WEIGHTS_H_
