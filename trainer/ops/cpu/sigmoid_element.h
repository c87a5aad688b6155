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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SIGMOID_ELEMENT_H_
