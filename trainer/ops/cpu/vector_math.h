// Elementary functions that gcc vectorises inside `#pragma omp simd` loops: no branch, no call, no
// table. They are pure functions of their argument, so a loop's tail gives the same bits. They and
// all that they call are always inlined, because kernels of several instruction sets use them
// (isa.h).
// Tests: tests/trainer/ops/vector_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_VECTOR_MATH_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_VECTOR_MATH_H_

#include <cstdint>

#include "trainer/ops/normal_tail.h"

#define FSDP_ALWAYS_INLINE inline __attribute__((always_inline))

namespace fsdp {

// e^x with a relative error below 2^-23 (1 ulp) wherever the result is normal, below 2^-149
// absolute where it is subnormal. Infinite above 88.73, zero below -104, NaN for NaN. The
// reduction to [-ln2/2, ln2/2] by a two-part ln 2 and the polynomial are those of Cephes' expf
// (Moshier, netlib.org/cephes, single/expf.c).
FSDP_ALWAYS_INLINE float Exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRound = 0x1.8p23f;
  const float shifted = x * 0x1.715476p0f + kRound;
  const float k = shifted - kRound;
  const float r = x - k * 0.693359375f + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^k in two factors: k reaches 128 and -150, beyond the exponents of normal numbers.
  const int32_t n = static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) -
                                         __builtin_bit_cast(uint32_t, kRound));
  const int32_t half = n >> 1;
  const auto power = [](int32_t e) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(n - half);
}

// tanh x with an absolute error below 2^-22. Not for tiny results: the relative error grows as x
// goes to 0.
FSDP_ALWAYS_INLINE float Tanh(float x) {
  const float e = Exp(-2.0f * __builtin_fabsf(x));
  return __builtin_copysignf((1.0f - e) / (1.0f + e), x);
}

// BFloat16(x) in the upper half of each lane, zero in the lower half, from a vector of floats'
// bits.
template <typename Bits>
FSDP_ALWAYS_INLINE Bits RoundBitsToBf16(Bits u) {
  using Signed = decltype(u < Bits{});
  const Bits nan = (Bits)((Signed)(u & 0x7fffffff) > 0x7f800000);
  const Bits rounded = u + (0x7fff + ((u >> 16) & 1));
  return ((rounded & ~nan) | ((u | 0x400000) & nan)) & 0xffff0000;
}

// The standard normal distribution.
struct Normal {
  float below;    // Phi(x) = (1 + erf(x / sqrt 2)) / 2.
  float density;  // phi(x) = e^(-x^2 / 2) / sqrt(2 pi).
};

// Both have a relative error below 2^-21 (4 ulp) wherever the result is normal, are zero below
// -14.5, and NaN for NaN. normal_tail.h describes the polynomial.
FSDP_ALWAYS_INLINE Normal NormalAt(float x) {
  using Tail = NormalTail;
  float a = __builtin_fabsf(x);
  a = a > 16.0f ? 16.0f : a;  // Its square must not overflow.
  const float t = 1.0f / __builtin_fmaf(Tail::kScale, a, 1.0f);
  float p = __builtin_fmaf(Tail::kP9, t, Tail::kP8);
  p = __builtin_fmaf(p, t, Tail::kP7);
  p = __builtin_fmaf(p, t, Tail::kP6);
  p = __builtin_fmaf(p, t, Tail::kP5);
  p = __builtin_fmaf(p, t, Tail::kP4);
  p = __builtin_fmaf(p, t, Tail::kP3);
  p = __builtin_fmaf(p, t, Tail::kP2);
  p = __builtin_fmaf(p, t, Tail::kP1);
  p = __builtin_fmaf(p, t, Tail::kP0);
  // The square is rounded by up to 87 ulp of e, which `rest` gives back.
  const float square = a * a, rest = __builtin_fmaf(a, a, -square);
  float e = Exp(-0.5f * square);
  e = __builtin_fmaf(e, -0.5f * rest, e);
  const float tail = e * (t * p);
  return {x < 0.0f ? tail : 1.0f - tail, Tail::kDensity * e};
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_VECTOR_MATH_H_
