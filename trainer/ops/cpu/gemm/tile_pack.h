// Factors of a product in tiles of 16 rows of 64 bytes, for sources that are compiled once for each
// instruction set (isa.h).
//
// As A, a tile has 16 rows of op(A), each with 32 k. As B, its row p has the k 2p and 2p + 1 of 16
// columns of op(B), in pairs. A step is 32 k of 32 rows or columns: two tiles one after the other.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PACK_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PACK_H_

#include <immintrin.h>

#include <cstdint>

#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int64_t kTileRows = 16, kTileRow = 64, kTileBytes = kTileRows * kTileRow;
constexpr int64_t kStepK = 32;  // k in a tile.
constexpr int64_t kStepBytes = 2 * kTileBytes;
constexpr int64_t kElement = 2;  // A bf16.

FSDP_ALWAYS_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// 16 rows of 32 elements, `row` bytes apart.
FSDP_ALWAYS_INLINE void CopyRows(const char* from, int64_t row, char* to) {
  for (int r = 0; r < kTileRows; ++r) __builtin_memcpy(to + r * kTileRow, from + r * row, kTileRow);
}

// 32 rows of 16 elements become 16 rows of 16 pairs.
FSDP_ALWAYS_INLINE void PairRows(const char* from, int64_t row, char* to) {
  for (int p = 0; p < kTileRows; ++p) {
    const auto load = [&](int64_t r) __attribute__((always_inline)) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + r * row));
    };
    const __m256i even = load(2 * p), odd = load(2 * p + 1);
    const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
    const auto at = reinterpret_cast<__m256i*>(to + p * kTileRow);
    _mm256_storeu_si256(at, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

#ifdef __AVX512F__
#define FSDP_WIDEST(name) _mm512_##name
constexpr int kQuarters = 4;  // Lanes of 16 bytes.
typedef __m512i Quarters;
FSDP_ALWAYS_INLINE Quarters LoadQuarters(const char* from, int64_t apart) {
  const auto at = [&](int i) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * apart));
  };
  Quarters v = _mm512_castsi128_si512(at(0));
  v = _mm512_inserti32x4(v, at(1), 1);
  v = _mm512_inserti32x4(v, at(2), 2);
  return _mm512_inserti32x4(v, at(3), 3);
}
#else
#define FSDP_WIDEST(name) _mm256_##name
constexpr int kQuarters = 2;
typedef __m256i Quarters;
FSDP_ALWAYS_INLINE Quarters LoadQuarters(const char* from, int64_t apart) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(from + apart),
                             reinterpret_cast<const __m128i*>(from));
}
#endif

// 16 rows of 16 pairs, transposed. Loads put quarters of rows that are four apart side by side, so
// that shuffles transpose within 16 bytes only.
FSDP_ALWAYS_INLINE void TurnPairs(const char* from, int64_t row, char* to) {
  constexpr int kRows = 4 * kQuarters;
  for (int64_t i = 0; i < kTileRows; i += kRows) {
    for (int64_t quarter = 0; quarter < 4; ++quarter) {
      Quarters v[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) v[r] = LoadQuarters(from + (i + r) * row + quarter * 16, 4 * row);
      const Quarters a = FSDP_WIDEST(unpacklo_epi32)(v[0], v[1]);
      const Quarters b = FSDP_WIDEST(unpackhi_epi32)(v[0], v[1]);
      const Quarters c = FSDP_WIDEST(unpacklo_epi32)(v[2], v[3]);
      const Quarters d = FSDP_WIDEST(unpackhi_epi32)(v[2], v[3]);
      const Quarters turned[] = {
          FSDP_WIDEST(unpacklo_epi64)(a, c), FSDP_WIDEST(unpackhi_epi64)(a, c),
          FSDP_WIDEST(unpacklo_epi64)(b, d), FSDP_WIDEST(unpackhi_epi64)(b, d)};
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        __builtin_memcpy(to + (4 * quarter + p) * kTileRow + 4 * i, &turned[p], sizeof(turned[p]));
      }
    }
  }
}
#undef FSDP_WIDEST

template <bool kAsB>
FSDP_ALWAYS_INLINE void PackWholeTile(const TileFactor& x, char* to) {
  if (x.next_k == kElement) {
    kAsB ? TurnPairs(x.data, x.next_i, to) : CopyRows(x.data, x.next_i, to);
  } else if (kAsB) {
    PairRows(x.data, x.next_k, to);
  } else {
    alignas(64) char pairs[kTileBytes];
    PairRows(x.data, x.next_k, pairs);
    TurnPairs(pairs, kTileRow, to);
  }
}

// The first `count` rows or columns and the first `k` of a tile; zeros are all else.
template <bool kAsB>
void PackTile(const TileFactor& x, int64_t count, int64_t k, char* to) {
  if (count >= kTileRows && k >= kStepK) return PackWholeTile<kAsB>(x, to);
  alignas(64) char padded[kTileBytes] = {};
  const bool rows_of_k = x.next_k == kElement;
  const int64_t row = rows_of_k ? kTileRow : kTileRow / 2;
  count = count < 0 ? 0 : Least(count, kTileRows);
  k = Least(k, kStepK);
  for (int64_t r = 0; r < (rows_of_k ? count : k); ++r) {
    __builtin_memcpy(padded + r * row, x.data + r * (rows_of_k ? x.next_i : x.next_k),
                     (rows_of_k ? k : count) * kElement);
  }
  PackWholeTile<kAsB>({padded, rows_of_k ? row : kElement, rows_of_k ? kElement : row}, to);
}

// Lines of the 32 rows or columns behind those of a step: they are packed next, and no prefetcher
// of a processor follows 32 rows.
FSDP_ALWAYS_INLINE void FetchNextPanel(const TileFactor& x) {
  const char* next = x.data + 2 * kTileRows * x.next_i;
  const int64_t row = x.next_k == kElement ? x.next_i : x.next_k;
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kTileRows; ++r, next += row) __builtin_prefetch(next, 0, 2);
}

// The first 32 of `count` rows or columns, and the first k, in steps.
template <bool kAsB>
void PackPanel(TileFactor x, int64_t count, int64_t k, char* to) {
  for (; k > 0; k -= kStepK, x.data += kStepK * x.next_k, to += kStepBytes) {
    if (count > 2 * kTileRows) FetchNextPanel(x);
    PackTile<kAsB>(x, count, k, to);
    const TileFactor second{x.data + kTileRows * x.next_i, x.next_i, x.next_k};
    PackTile<kAsB>(second, count - kTileRows, k, to + kTileBytes);
  }
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_TILE_PACK_H_
