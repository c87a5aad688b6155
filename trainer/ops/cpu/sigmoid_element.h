// The sigmoid of one element, for kernels. Always inlined (vector_math.h).
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SIGMOID_ELEMENT_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SIGMOID_ELEMENT_H_

#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {

struct Sigmoid {
  float s, rest;  // 1 / (1 + exp(-x)), and 1 - s.
};

// A NaN passes through.
FSDP_ALWAYS_INLINE Sigmoid SigmoidAt(float x) {
  const float e = Exp(-__builtin_fabsf(x)), r = 1.0f / (1.0f + e);
  return {x < 0.0f ? e * r : r, x < 0.0f ? r : e * r};
}

// GELU of one element, for kernels: formulas in activations.h. Always inlined (vector_math.h).
struct GeluSigmoid {
  float s;      // 1 / (1 + exp(-2u)).
  float slope;  // Its derivative by x: 2 s (1 - s) u'(x).
};

// Beyond |x| = 16 s is 0 or 1 to the last bit; x^3 must not overflow there. A NaN passes through.
FSDP_ALWAYS_INLINE GeluSigmoid GeluSigmoidAt(float x) {
  constexpr float kScale = 0.7978845608f;  // sqrt(2 / pi).
  constexpr float kCubic = 0.044715f;
  float v = x < -16.0f ? -16.0f : x;
  v = v > 16.0f ? 16.0f : v;
  const float u = kScale * v * (1.0f + kCubic * v * v);
  const float e = Exp(-2.0f * __builtin_fabsf(u)), r = 1.0f / (1.0f + e);
  const float du = kScale * (1.0f + 3.0f * kCubic * v * v);
  return {v < 0.0f ? e * r : r, 2.0f * e * r * r * du};
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SIGMOID_ELEMENT_H_
