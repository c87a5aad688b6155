#include "trainer/ops/cpu/rounding_kernels.h"

#include <immintrin.h>

#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

constexpr int kRounds = 10;
constexpr int64_t kVector = 16;  // Elements that are rounded at once.

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

// The draws of a chunk, two in each lane of 32 bits: of [0, 32) and of [32, 64), each with those of
// its first 16 elements in the lower halves.
struct Draws {
  Words first[kParts], second[kParts];
};

Draws DrawChunk(const RoundingStream& stream, uint64_t chunk) {
  // See trainer/core/philox.cc.
  const Words m0 = All(0xD2511F53u), m1 = All(0xCD9E8D57u);
  constexpr uint32_t kW0 = 0x9E3779B9u, kW1 = 0xBB67AE85u;
  Draws draws;
  for (int part = 0; part < kParts; ++part) {
    const uint64_t block = chunk * 8 + part * kBlocks;
    Words c0 = Add(All(block), Iota()), c1 = All(block >> 32);
    Words c2 = All(stream.tensor), c3 = All(stream.tensor >> 32);
#pragma GCC unroll 10
    for (uint32_t round = 0; round < kRounds; ++round) {
      const Words p0 = Multiply(c0, m0), p1 = Multiply(c2, m1);
      c0 = Xor(Upper(p1), c1, All(stream.key[0] + round * kW0));
      c1 = p1;
      c2 = Xor(Upper(p0), c3, All(stream.key[1] + round * kW1));
      c3 = p0;
    }
    draws.first[part] = Zip(c0, c1);
    draws.second[part] = Zip(c2, c3);
  }
  return draws;
}

// The next smaller bf16 in magnitude of what is beyond all of them, which 2^16 must not be added
// to.
constexpr uint32_t kTruncatedFrom = 0x7f7f0000u, kMagnitude = 0x7fffffffu, kQuiet = 0x400000u;

#ifdef __AVX512F__
void RoundVector(const float* x, __m512i draws, uint16_t* y) {
  const __m512 value = _mm512_loadu_ps(x);
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitude));
  const __mmask16 rounds = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(kTruncatedFrom));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  __m512i rounded = _mm512_mask_add_epi32(bits, rounds, bits, draws);
  rounded = _mm512_mask_or_epi32(rounded, nan, rounded, _mm512_set1_epi32(kQuiet));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

void RoundHalfChunk(const float* x, const Words (&draws)[kParts], uint16_t* y) {
  RoundVector(x, _mm512_and_si512(draws[0], _mm512_set1_epi32(0xffff)), y);
  RoundVector(x + kVector, _mm512_srli_epi32(draws[0], 16), y + kVector);
}
#else
__m256i Rounded(const float* x, __m256i draws) {
  const __m256 value = _mm256_loadu_ps(x);
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(kMagnitude));
  const __m256i truncated =
      _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(kTruncatedFrom - 1)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_andnot_si256(truncated, draws));
  const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(kQuiet));
  return _mm256_srli_epi32(_mm256_or_si256(rounded, quiet), 16);
}

void RoundVector(const float* x, __m256i low, __m256i high, uint16_t* y) {
  const __m256i halves = _mm256_packus_epi32(Rounded(x, low), Rounded(x + 8, high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permute4x64_epi64(halves, 0xd8));
}

void RoundHalfChunk(const float* x, const Words (&draws)[kParts], uint16_t* y) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  RoundVector(x, _mm256_and_si256(draws[0], mask), _mm256_and_si256(draws[1], mask), y);
  RoundVector(x + kVector, _mm256_srli_epi32(draws[0], 16), _mm256_srli_epi32(draws[1], 16),
              y + kVector);
}
#endif

void RoundChunk(const RoundingStream& stream, uint64_t chunk, const float* x, uint16_t* y) {
  const Draws draws = DrawChunk(stream, chunk);
  RoundHalfChunk(x, draws.first, y);
  RoundHalfChunk(x + 2 * kVector, draws.second, y + 2 * kVector);
}

void Round(const RoundingStream& stream, int64_t element, const float* x, int64_t n, uint16_t* y) {
  while (n > 0) {
    const uint64_t chunk = element / kRoundingChunk;
    const int64_t skipped = element % kRoundingChunk;
    const int64_t count = kRoundingChunk - skipped < n ? kRoundingChunk - skipped : n;
    if (count == kRoundingChunk) {
      RoundChunk(stream, chunk, x, y);
    } else {  // In a whole one of its own.
      float from[kRoundingChunk] = {};
      uint16_t to[kRoundingChunk];
      for (int64_t i = 0; i < count; ++i) from[skipped + i] = x[i];
      RoundChunk(stream, chunk, from, to);
      for (int64_t i = 0; i < count; ++i) y[i] = to[skipped + i];
    }
    element += count, x += count, y += count, n -= count;
  }
}

}  // namespace

const RoundingKernels FSDP_ISA(kRounding) = {Round};

}  // namespace fsdp
