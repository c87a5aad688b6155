#include "trainer/ops/cpu/rounding_kernels.h"

#include <immintrin.h>

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int kRounds = 7;
constexpr int64_t kHalf = kRoundingChunk / 2;

// Words of Philox blocks, one in the lower half of each 64-bit lane. What the upper halves hold
// counts for nothing: products of 32 bits do not read them.
#ifdef __AVX512F__
using Words = __m512i;
Words All(uint64_t value) { return _mm512_set1_epi64(static_cast<int64_t>(value)); }
Words Iota() { return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7); }
Words Add(Words a, Words b) { return _mm512_add_epi64(a, b); }
Words Multiply(Words a, Words b) { return _mm512_mul_epu32(a, b); }
Words Upper(Words a) { return _mm512_srli_epi64(a, 32); }
Words Xor(Words a, Words b, Words c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// The lower halves of both, by turns.
Words Zip(Words even, Words odd) {
  return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
#else
using Words = __m256i;
Words All(uint64_t value) { return _mm256_set1_epi64x(static_cast<int64_t>(value)); }
Words Iota() { return _mm256_setr_epi64x(0, 1, 2, 3); }
Words Add(Words a, Words b) { return _mm256_add_epi64(a, b); }
Words Multiply(Words a, Words b) { return _mm256_mul_epu32(a, b); }
Words Upper(Words a) { return _mm256_srli_epi64(a, 32); }
Words Xor(Words a, Words b, Words c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
Words Zip(Words even, Words odd) {
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
#endif
constexpr int kBlocks = sizeof(Words) / 8;
constexpr int kParts = 8 / kBlocks;  // Of a chunk's eight blocks.

// Of a tensor: what all its blocks have in common.
struct Schedule {
  Words keys[kRounds][2];
  Words tensor[2];
};

Schedule ScheduleOf(const RoundingStream& stream) {
  constexpr uint32_t kW0 = 0x9E3779B9u, kW1 = 0xBB67AE85u;  // See trainer/core/philox.cc.
  Schedule schedule;
  for (uint32_t round = 0; round < kRounds; ++round) {
    schedule.keys[round][0] = All(stream.key[0] + round * kW0);
    schedule.keys[round][1] = All(stream.key[1] + round * kW1);
  }
  schedule.tensor[0] = All(stream.tensor);
  schedule.tensor[1] = All(stream.tensor >> 32);
  return schedule;
}

// The draws of a chunk, in order: one in each lane of 16 bits.
struct Draws {
  Words first[kParts], second[kParts];
};

FSDP_ALWAYS_INLINE Draws DrawChunk(const Schedule& schedule, uint64_t chunk) {
  const Words m0 = All(0xD2511F53u), m1 = All(0xCD9E8D57u);
  Draws draws;
  for (int part = 0; part < kParts; ++part) {
    const uint64_t block = chunk * 8 + part * kBlocks;
    Words c0 = Add(All(block), Iota()), c1 = All(block >> 32);
    Words c2 = schedule.tensor[0], c3 = schedule.tensor[1];
#pragma GCC unroll 7
    for (int round = 0; round < kRounds; ++round) {
      const Words p0 = Multiply(c0, m0), p1 = Multiply(c2, m1);
      c0 = Xor(Upper(p1), c1, schedule.keys[round][0]);
      c1 = p1;
      c2 = Xor(Upper(p0), c3, schedule.keys[round][1]);
      c3 = p0;
    }
    draws.first[part] = Zip(c0, c1);
    draws.second[part] = Zip(c2, c3);
  }
  return draws;
}

// Of bf16. What has the largest magnitude or more is not rounded away from zero.
constexpr int16_t kMagnitude = 0x7fff, kLargest = 0x7f7f, kInfinity = 0x7f80, kQuiet = 0x40;

// The upper halves of the 32 floats, plus one where the lower half and the draw overflow.
#ifdef __AVX512F__
FSDP_ALWAYS_INLINE void RoundHalf(const float* x, const Words (&draws)[kParts], uint16_t* y) {
  const __m512i low_index =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i high_index = _mm512_add_epi16(low_index, _mm512_set1_epi16(1));
  const __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 16);
  const __m512i low = _mm512_permutex2var_epi16(a, low_index, b);
  __m512i high = _mm512_permutex2var_epi16(a, high_index, b);
  const __m512i magnitude = _mm512_and_si512(high, _mm512_set1_epi16(kMagnitude));
  const __mmask32 rounds = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(kLargest));
  const __mmask32 up = _mm512_mask_cmplt_epu16_mask(rounds, _mm512_add_epi16(low, draws[0]), low);
  high = _mm512_mask_add_epi16(high, up, high, _mm512_set1_epi16(1));
  if (__builtin_expect(rounds != ~__mmask32{0}, 0)) {
    const __m512i infinity = _mm512_set1_epi16(kInfinity);
    const __mmask32 nan =
        _mm512_cmpgt_epi16_mask(magnitude, infinity) |
        (_mm512_cmpeq_epi16_mask(magnitude, infinity) & _mm512_test_epi16_mask(low, low));
    high = _mm512_mask_blend_epi16(nan, high, _mm512_or_si512(high, _mm512_set1_epi16(kQuiet)));
  }
  _mm512_storeu_si512(y, high);
}
#else
// Of 16 floats.
FSDP_ALWAYS_INLINE __m256i Pack(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
FSDP_ALWAYS_INLINE void RoundVector(const float* x, __m256i draws, uint16_t* y) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8));
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i low = Pack(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
  __m256i high = Pack(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
  const __m256i magnitude = _mm256_and_si256(high, _mm256_set1_epi16(kMagnitude));
  const __m256i stays = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(kLargest - 1));
  const __m256i sum = _mm256_add_epi16(low, draws);
  // -1 where there is no carry.
  __m256i down = _mm256_cmpeq_epi16(_mm256_max_epu16(sum, low), sum);
  if (__builtin_expect(!_mm256_testz_si256(stays, stays), 0)) {
    down = _mm256_or_si256(down, stays);
    const __m256i infinity = _mm256_set1_epi16(kInfinity);
    const __m256i zero_low = _mm256_cmpeq_epi16(low, _mm256_setzero_si256());
    const __m256i nan =
        _mm256_or_si256(_mm256_cmpgt_epi16(magnitude, infinity),
                        _mm256_andnot_si256(zero_low, _mm256_cmpeq_epi16(magnitude, infinity)));
    high = _mm256_or_si256(high, _mm256_and_si256(nan, _mm256_set1_epi16(kQuiet)));
  }
  high = _mm256_add_epi16(_mm256_add_epi16(high, _mm256_set1_epi16(1)), down);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), high);
}
FSDP_ALWAYS_INLINE void RoundHalf(const float* x, const Words (&draws)[kParts], uint16_t* y) {
  RoundVector(x, draws[0], y);
  RoundVector(x + 16, draws[1], y + 16);
}
#endif

FSDP_ALWAYS_INLINE void RoundChunk(const Schedule& schedule, uint64_t chunk, const float* x,
                                   uint16_t* y) {
  const Draws draws = DrawChunk(schedule, chunk);
  RoundHalf(x, draws.first, y);
  RoundHalf(x + kHalf, draws.second, y + kHalf);
}

void Round(const RoundingStream& stream, int64_t element, const float* x, int64_t n, uint16_t* y) {
  const Schedule schedule = ScheduleOf(stream);
  while (n > 0) {
    const uint64_t chunk = element / kRoundingChunk;
    const int64_t skipped = element % kRoundingChunk;
    const int64_t count = kRoundingChunk - skipped < n ? kRoundingChunk - skipped : n;
    if (count == kRoundingChunk) {
      RoundChunk(schedule, chunk, x, y);
    } else {  // In a whole one of its own.
      float from[kRoundingChunk] = {};
      uint16_t to[kRoundingChunk];
      for (int64_t i = 0; i < count; ++i) from[skipped + i] = x[i];
      RoundChunk(schedule, chunk, from, to);
      for (int64_t i = 0; i < count; ++i) y[i] = to[skipped + i];
    }
    element += count, x += count, y += count, n -= count;
  }
}

}  // namespace

const RoundingKernels FSDP_ISA(kRounding) = {Round};

}  // namespace fsdp
