// Stochastic rounding of floats to bf16, for sources that are compiled once for each instruction
// set (isa.h). A value between two of bf16 becomes the one farther from zero with the probability
// of its distance from the other, in steps of 2^-16. So the mean of many roundings is the value.
// Values of bf16 stay as they are, an infinity stays one, and a NaN that arithmetic has made stays
// one. A finite value stays finite: beyond the largest of bf16 it becomes the largest.
//
// The draw of 16 bits for element e of a tensor is half a word of a Philox4x32-7 block. The block's
// counter is
//   (low and high half of e / 64 * 8 + e % 32 / 4, low and high half of the tensor's hash).
// The word is e % 64 / 32 * 2 + e / 2 % 2; even e take its lower half, odd e its upper one. So the
// draw does not depend on which part of the tensor is rounded, and the draws of 64 elements are two
// vectors without a shuffle. Seven rounds are the fewest that the paper calls Crush-resistant
// (Salmon et al. 2011; see trainer/core/philox.h). Where caches hold all operands, the rounds take
// most of the time of an update in bf16.
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
Words Zip(Words a, Words b, Words c) {
  const Words turned = _mm256_shuffle_epi32(a, 0xb1);
  return _mm256_blend_epi32(Xor(turned, b, c), turned, 0xaa);
}
#endif
constexpr int kBlocks = sizeof(Words) / 8;
constexpr int kParts = 8 / kBlocks;  // Parts of a chunk's eight blocks.

// The common part of all blocks of one tensor's values of one kind.
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

// The draws of a chunk, in order: one in each lane of 16 bits.
using Draws = Words[2 * kParts];

// Draws of several schedules, round by round, so that each waits for its own products alone.
template <int kStreams>
FSDP_ALWAYS_INLINE void DrawChunk(const DrawSchedule* schedules, uint64_t chunk, Draws* draws) {
  const Words m0 = All(0xD2511F53u), m1 = All(0xCD9E8D57u);
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    const uint64_t block = chunk * 8 + part * kBlocks;
    Words c0[kStreams], c1[kStreams], c2[kStreams], c3[kStreams];
#pragma GCC unroll 3
    for (int s = 0; s < kStreams; ++s) {
      c0[s] = Add(All(block), Iota()), c1[s] = All(block >> 32);
      c2[s] = schedules[s].tensor[0], c3[s] = schedules[s].tensor[1];
    }
#pragma GCC unroll 7
    for (int round = 0; round < kRounds - 1; ++round) {
#pragma GCC unroll 3
      for (int s = 0; s < kStreams; ++s) {
        const Words p0 = Multiply(c0[s], m0), p1 = Multiply(c2[s], m1);
        c0[s] = Xor(Upper(p1), c1[s], schedules[s].keys[round][0]);
        c1[s] = p1;
        c2[s] = Xor(Upper(p0), c3[s], schedules[s].keys[round][1]);
        c3[s] = p0;
      }
    }
#pragma GCC unroll 3
    for (int s = 0; s < kStreams; ++s) {
      const Words(&keys)[2] = schedules[s].keys[kRounds - 1];
      draws[s][part] = Zip(Multiply(c2[s], m1), c1[s], keys[0]);
      draws[s][kParts + part] = Zip(Multiply(c0[s], m0), c3[s], keys[1]);
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
