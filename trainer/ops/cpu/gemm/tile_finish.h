// Sums of a product on tiles become elements of C, for sources that are compiled once for each
// instruction set (isa.h): round(fma(beta, C, alpha sum) + bias + D), in vectors, in one pass.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_FINISH_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_FINISH_H_

#include <immintrin.h>

#include <cstdint>

#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

#ifdef __AVX512F__
constexpr int64_t kSumLanes = 16;
#define FSDP_WIDE(name) _mm512_##name
typedef __m512i SumBits;
typedef __m256i SumHalves;
#else
constexpr int64_t kSumLanes = 8;
#define FSDP_WIDE(name) _mm256_##name
typedef __m256i SumBits;
typedef __m128i SumHalves;
#endif
typedef float SumVector __attribute__((vector_size(kSumLanes * 4)));

template <typename Wide>
FSDP_ALWAYS_INLINE Wide ReadWide(const void* from) {
  Wide v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

// A vector of C's elements as floats, and floats as such elements, rounded to nearest. fp32:
struct Fp32InC {
  static constexpr int64_t kBytes = 4;
  static FSDP_ALWAYS_INLINE SumVector Read(const char* from) { return ReadWide<SumVector>(from); }
  static FSDP_ALWAYS_INLINE void Write(SumVector x, char* to) {
    __builtin_memcpy(to, &x, sizeof(x));
  }
};

struct Bf16InC {
  static constexpr int64_t kBytes = 2;
  static FSDP_ALWAYS_INLINE SumVector Read(const char* from) {
    const auto wide = FSDP_WIDE(cvtepu16_epi32)(ReadWide<SumHalves>(from));
    return (SumVector)FSDP_WIDE(slli_epi32)(wide, 16);
  }
  // Subnormals are zero where products are computed on tiles.
  static FSDP_ALWAYS_INLINE void Write(SumVector x, char* to) {
#ifdef __AVX512BF16__
    const auto halves = (SumHalves)_mm512_cvtneps_pbh((__m512)x);
#else
    typedef uint32_t Bits __attribute__((vector_size(kSumLanes * 4)));
    typedef uint16_t Halves __attribute__((vector_size(kSumLanes * 2)));
    const Halves halves = __builtin_convertvector(RoundBitsToBf16((Bits)x) >> 16, Halves);
#endif
    __builtin_memcpy(to, &halves, sizeof(halves));
  }
};

struct Fp16InC {
  static constexpr int64_t kBytes = 2;
  static FSDP_ALWAYS_INLINE SumVector Read(const char* from) {
    return (SumVector)FSDP_WIDE(cvtph_ps)(ReadWide<SumHalves>(from));
  }
  static FSDP_ALWAYS_INLINE void Write(SumVector x, char* to) {
#ifdef __AVX512F__
    const SumHalves halves = _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    const SumHalves halves = _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#endif
    __builtin_memcpy(to, &halves, sizeof(halves));
  }
};
#undef FSDP_WIDE

// The terms of an element of C besides alpha sum.
constexpr int kBeta = 1, kBias = 2, kAdded = 4, kTermSets = 8;

// A vector of sums. Terms that are not in kTerms are not read.
template <typename C, int kTerms>
FSDP_ALWAYS_INLINE void FinishVector(const TileProduct& p, const float* sums, const float* bias,
                                     const char* added, char* c) {
  SumVector x = p.alpha * ReadWide<SumVector>(sums);
  asm("" : "+v"(x));  // Rounded here, not fused with what is added.
  if constexpr ((kTerms & kBeta) != 0) x += p.beta * C::Read(c);
  asm("" : "+v"(x));
  if constexpr ((kTerms & kBias) != 0) x += ReadWide<SumVector>(bias);
  if constexpr ((kTerms & kAdded) != 0) x += C::Read(added);
  C::Write(x, c);
}

template <typename C, int kTerms>
void FinishRow(const TileProduct& p, const float* sums, int64_t row, int64_t col, int64_t cols) {
  const int64_t at = row * p.c_row + col * C::kBytes;
  char* const c = p.c + at;
  const char* const added = p.added + at;
  const float* const bias = p.bias + col;
  int64_t j = 0;
  for (; j + kSumLanes <= cols; j += kSumLanes) {
    const int64_t bytes = j * C::kBytes;
    FinishVector<C, kTerms>(p, sums + j, bias + j, added + bytes, c + bytes);
  }
  if (j == cols) return;
  constexpr int64_t kStep = kSumLanes * C::kBytes;
  char last[kStep] = {}, last_added[kStep] = {};
  float last_sums[kSumLanes] = {}, last_bias[kSumLanes] = {};
  const int64_t left = cols - j, first = j * C::kBytes, bytes = left * C::kBytes;
  __builtin_memcpy(last_sums, sums + j, left * 4);
  if constexpr ((kTerms & kBeta) != 0) __builtin_memcpy(last, c + first, bytes);
  if constexpr ((kTerms & kBias) != 0) __builtin_memcpy(last_bias, bias + j, left * 4);
  if constexpr ((kTerms & kAdded) != 0) __builtin_memcpy(last_added, added + first, bytes);
  FinishVector<C, kTerms>(p, last_sums, last_bias, last_added, last);
  __builtin_memcpy(c + first, last, bytes);
}

using RowFinisher = void (*)(const TileProduct& p, const float* sums, int64_t row, int64_t col,
                             int64_t cols);

template <typename C>
RowFinisher FinisherOf(const TileProduct& p) {
  static constexpr RowFinisher kRows[kTermSets] = {
      FinishRow<C, 0>, FinishRow<C, 1>, FinishRow<C, 2>, FinishRow<C, 3>,
      FinishRow<C, 4>, FinishRow<C, 5>, FinishRow<C, 6>, FinishRow<C, 7>};
  return kRows[(p.beta != 0 ? kBeta : 0) | (p.bias != nullptr ? kBias : 0) |
               (p.added != nullptr ? kAdded : 0)];
}

// Rows [row, row + rows) and columns [col, col + cols) of C; a row of sums is next_row floats.
void FinishTile(const TileProduct& p, const float* sums, int64_t next_row, int64_t row,
                int64_t rows, int64_t col, int64_t cols) {
  const RowFinisher finish = p.dtype == DType::kFloat32    ? FinisherOf<Fp32InC>(p)
                             : p.dtype == DType::kBFloat16 ? FinisherOf<Bf16InC>(p)
                                                           : FinisherOf<Fp16InC>(p);
  for (int64_t r = row; r < row + rows; ++r, sums += next_row) finish(p, sums, r, col, cols);
  if (p.finish != nullptr) p.finish(p.context, row, rows, col, cols);
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_FINISH_H_
