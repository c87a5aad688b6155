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
    typedef int32_t Signed __attribute__((vector_size(kSumLanes * 4)));
    typedef uint16_t Halves __attribute__((vector_size(kSumLanes * 2)));
    const Bits u = (Bits)x, nan = (Bits)((Signed)(u & 0x7fffffff) > 0x7f800000);
    const Bits rounded = u + (0x7fff + ((u >> 16) & 1));
    const Bits bits = (rounded & ~nan) | ((u | 0x400000) & nan);
    const Halves halves = __builtin_convertvector(bits >> 16, Halves);
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

// A vector of sums, and where its terms lie; null: there is none.
template <typename C>
FSDP_ALWAYS_INLINE void FinishVector(const TileProduct& p, const float* sums, const float* bias,
                                     const char* added, char* c) {
  SumVector x = ReadWide<SumVector>(sums);
  if (p.alpha != 1) x *= p.alpha;
  asm("" : "+v"(x));  // Rounded here, not fused with what is added.
  if (p.beta != 0) x += p.beta * C::Read(c);
  asm("" : "+v"(x));
  if (bias != nullptr) x += ReadWide<SumVector>(bias);
  if (added != nullptr) x += C::Read(added);
  C::Write(x, c);
}

template <typename C>
void FinishRow(const TileProduct& p, const float* sums, int64_t row, int64_t col, int64_t cols) {
  const int64_t at = row * p.c_row + col * C::kBytes;
  char* c = p.c + at;
  const char* added = p.added == nullptr ? nullptr : p.added + at;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + col;
  constexpr int64_t kStep = kSumLanes * C::kBytes;
  for (; cols >= kSumLanes; cols -= kSumLanes, sums += kSumLanes, c += kStep) {
    FinishVector<C>(p, sums, bias, added, c);
    if (bias != nullptr) bias += kSumLanes;
    if (added != nullptr) added += kStep;
  }
  if (cols == 0) return;
  char last[kStep] = {}, last_added[kStep] = {};
  float last_sums[kSumLanes] = {}, last_bias[kSumLanes] = {};
  const int64_t bytes = cols * C::kBytes;
  __builtin_memcpy(last_sums, sums, cols * 4);
  if (p.beta != 0) __builtin_memcpy(last, c, bytes);
  if (added != nullptr) __builtin_memcpy(last_added, added, bytes);
  if (bias != nullptr) __builtin_memcpy(last_bias, bias, cols * 4);
  FinishVector<C>(p, last_sums, bias == nullptr ? nullptr : last_bias,
                  added == nullptr ? nullptr : last_added, last);
  __builtin_memcpy(c, last, bytes);
}

// Rows [row, row + rows) and columns [col, col + cols) of C; a row of sums is next_row floats.
void FinishTile(const TileProduct& p, const float* sums, int64_t next_row, int64_t row,
                int64_t rows, int64_t col, int64_t cols) {
  const auto finish = p.dtype == DType::kFloat32    ? FinishRow<Fp32InC>
                      : p.dtype == DType::kBFloat16 ? FinishRow<Bf16InC>
                                                    : FinishRow<Fp16InC>;
  for (int64_t r = row; r < row + rows; ++r, sums += next_row) finish(p, sums, r, col, cols);
  if (p.finish != nullptr) p.finish(p.context, row, rows, col, cols);
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_FINISH_H_
