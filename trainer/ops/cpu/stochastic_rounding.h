// Stochastic rounding of floats to bf16, for sources that are compiled once for each instruction
// set (isa.h). A value between two of bf16 becomes the one farther from zero with the probability
// of its distance from the other, in steps of 2^-16. So the mean of many roundings is the value.
// Values of bf16 stay as they are, an infinity stays one, and a NaN that arithmetic has made stays
// one. A finite value stays finite: beyond the largest of bf16 it becomes the largest.
//
// Draws of 16 bits are made of Philox4x32-7 blocks, whose counter is
//   (low and high half of e / 64 * 8 + e % 32 / 4, low and high half of the tensor's hash)
// for element e of a tensor. Seven rounds are the fewest that the paper calls Crush-resistant
// (Salmon et al. 2011; see trainer/core/philox.h). A block's words are eight halves: a[0], the
// lower half of the first word, to a[3] in the first two words, b[0] to b[3] in the others.
// Elements of the first 32 of a chunk of 64 have a, those of the last 32 have b, each one half, of
// its own: h[i], where i = e % 4; o is the other four halves. The draws of element e are
//   kind 0, for p:                 h[i]
//   kind 1, for the first state:   h[i] ^ o[i] ^ o[i + 1]
//   kind 2, for the second state:  h[i] ^ o[i + 2] ^ o[i + 3]        indices mod 4
// So a draw does not depend on which part of the tensor is rounded, and the draws of 64 elements
// are two vectors without a shuffle across their lanes of 64 bits.
//
// How independent draws are, where the halves are independent and uniform:
//   - all draws of a kind are: as functions of the eight halves those of a block have full rank;
//   - any three draws are, of whatever kinds and elements: each is a sum of an odd number of
//   halves,
//     the 24 sums differ, and so no two and no three of them add up to zero;
//   - draws of different blocks, tensors and updates are.
// So sums of rounding errors have the mean, variance and third moment that they would have with a
// block for each kind, and sums over one kind have the same distribution. Four draws may depend:
// kinds 1 and 2 of two elements that are two apart.
// Tests: tests/trainer/ops/update_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_STOCHASTIC_ROUNDING_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_STOCHASTIC_ROUNDING_H_

#include <immintrin.h>

#include <cstdint>

#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr int kRounds = 7;
constexpr int64_t kChunk = 64;  // Elements that share a row of blocks.

// Words of Philox blocks, one in the lower half of each 64-bit lane. The upper halves are ignored:
// products of 32 bits do not read them.
#ifdef __AVX512F__
using Words = __m512i;
Words All(uint64_t value) { return _mm512_set1_epi64(static_cast<int64_t>(value)); }
Words Iota() { return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7); }
Words Add(Words a, Words b) { return _mm512_add_epi64(a, b); }
Words Multiply(Words a, Words b) { return _mm512_mul_epu32(a, b); }
Words Upper(Words a) { return _mm512_srli_epi64(a, 32); }
Words Xor(Words a, Words b, Words c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// Each lane of 64 bits, turned by one and by two of its halves of words: the next half is the
// first.
Words NextHalves(Words a) { return _mm512_ror_epi64(a, 16); }
Words Turned(Words a) { return _mm512_ror_epi64(a, 32); }
// Upper(a) ^ b ^ c and the lower half of a, alternating.
Words Zip(Words a, Words b, Words c) {
  return _mm512_mask_ternarylogic_epi32(_mm512_rol_epi64(a, 32), 0x5555, b, c, 0x96);
}
#else
using Words = __m256i;
Words All(uint64_t value) { return _mm256_set1_epi64x(static_cast<int64_t>(value)); }
Words Iota() { return _mm256_setr_epi64x(0, 1, 2, 3); }
Words Add(Words a, Words b) { return _mm256_add_epi64(a, b); }
Words Multiply(Words a, Words b) { return _mm256_mul_epu32(a, b); }
Words Upper(Words a) { return _mm256_srli_epi64(a, 32); }
Words Xor(Words a, Words b, Words c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
Words NextHalves(Words a) {
  const __m128i next = _mm_setr_epi8(2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9);
  return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(next));
}
Words Turned(Words a) { return _mm256_shuffle_epi32(a, 0xb1); }
Words Zip(Words a, Words b, Words c) {
  const Words turned = _mm256_shuffle_epi32(a, 0xb1);
  return _mm256_blend_epi32(Xor(turned, b, c), turned, 0xaa);
}
#endif
constexpr int kBlocks = sizeof(Words) / 8;
constexpr int kParts = 8 / kBlocks;  // Parts of a chunk's eight blocks.

// The common part of all blocks of one tensor.
struct DrawSchedule {
  Words keys[kRounds][2];
  Words tensor[2];
};

FSDP_ALWAYS_INLINE DrawSchedule ScheduleOf(const uint32_t (&key)[2], uint64_t tensor) {
  constexpr uint32_t kW0 = 0x9E3779B9u, kW1 = 0xBB67AE85u;  // See trainer/core/philox.cc.
  DrawSchedule schedule;
  for (uint32_t round = 0; round < kRounds; ++round) {
    schedule.keys[round][0] = All(key[0] + round * kW0);
    schedule.keys[round][1] = All(key[1] + round * kW1);
  }
  schedule.tensor[0] = All(tensor);
  schedule.tensor[1] = All(tensor >> 32);
  return schedule;
}

// The draws of a chunk of one kind, in order: one in each lane of 16 bits.
using Draws = Words[2 * kParts];

// The draws of kinds [kFirst, kEnd) of a chunk.
template <int kFirst, int kEnd>
FSDP_ALWAYS_INLINE void DrawChunk(const DrawSchedule& schedule, uint64_t chunk, Draws* draws) {
  const Words m0 = All(0xD2511F53u), m1 = All(0xCD9E8D57u);
  Words c0[kParts], c1[kParts], c2[kParts], c3[kParts];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    const uint64_t block = chunk * 8 + part * kBlocks;
    c0[part] = Add(All(block), Iota()), c1[part] = All(block >> 32);
    c2[part] = schedule.tensor[0], c3[part] = schedule.tensor[1];
  }
#pragma GCC unroll 7
  for (int round = 0; round < kRounds - 1; ++round) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const Words p0 = Multiply(c0[part], m0), p1 = Multiply(c2[part], m1);
      c0[part] = Xor(Upper(p1), c1[part], schedule.keys[round][0]);
      c1[part] = p1;
      c2[part] = Xor(Upper(p0), c3[part], schedule.keys[round][1]);
      c3[part] = p0;
    }
  }
  const Words(&keys)[2] = schedule.keys[kRounds - 1];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    const Words a = Zip(Multiply(c2[part], m1), c1[part], keys[0]);
    const Words b = Zip(Multiply(c0[part], m0), c3[part], keys[1]);
    const Words next_a = NextHalves(a), next_b = NextHalves(b);
    if constexpr (kFirst == 0) draws[0][part] = a, draws[0][kParts + part] = b;
    if constexpr (kEnd > 1) {
      draws[1][part] = Xor(a, b, next_b);
      draws[1][kParts + part] = Xor(b, a, next_a);
    }
    if constexpr (kEnd > 2) {
      draws[2][part] = Xor(a, Turned(b), Turned(next_b));
      draws[2][kParts + part] = Xor(b, Turned(a), Turned(next_a));
    }
  }
}

// In bf16: values of this magnitude or more stay as they are.
constexpr int16_t kLargest = 0x7f7f;

// Two vectors of floats, given as their bits, as one of bf16.
#ifdef __AVX512F__
FSDP_ALWAYS_INLINE Words UpperHalves(Words a, Words b) {
  const __m512i index =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(a, index, b);
}
FSDP_ALWAYS_INLINE Words LowerHalves(Words a, Words b) {
  const __m512i index =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return _mm512_permutex2var_epi16(a, index, b);
}
#else
FSDP_ALWAYS_INLINE Words Pack(Words a, Words b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
FSDP_ALWAYS_INLINE Words UpperHalves(Words a, Words b) {
  return Pack(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
}
FSDP_ALWAYS_INLINE Words LowerHalves(Words a, Words b) {
  const Words mask = _mm256_set1_epi32(0xffff);
  return Pack(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
}
#endif

// The upper halves, plus one where the lower half and the draw overflow.
FSDP_ALWAYS_INLINE Words RoundByDraws(Words a, Words b, Words draws) {
  const Words low = LowerHalves(a, b), high = UpperHalves(a, b);
#ifdef __AVX512F__
  const __mmask32 rounds =
      _mm512_cmplt_epu16_mask(_mm512_add_epi16(high, high), _mm512_set1_epi16(2 * kLargest));
  const __mmask32 up = _mm512_mask_cmplt_epu16_mask(rounds, _mm512_add_epi16(low, draws), low);
  return _mm512_mask_sub_epi16(high, up, high, _mm512_set1_epi16(-1));
#else
  // -1 where a magnitude is less than the largest, and where there is no carry.
  const Words rounds = _mm256_cmpgt_epi16(_mm256_set1_epi16(kLargest),
                                          _mm256_and_si256(high, _mm256_set1_epi16(0x7fff)));
  const Words sum = _mm256_add_epi16(low, draws);
  const Words down = _mm256_cmpeq_epi16(_mm256_max_epu16(sum, low), sum);
  return _mm256_sub_epi16(high, _mm256_andnot_si256(down, rounds));
#endif
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_STOCHASTIC_ROUNDING_H_
