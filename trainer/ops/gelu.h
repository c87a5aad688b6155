// GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2; "gelu_new" of
// GPT-2):
//   u(x) = sqrt(2 / pi) (x + 0.044715 x^3)      y = x/2 (1 + tanh u) = x s, s = 1 / (1 + exp(-2u))
//   dx = dy (s + 2 x s (1 - s) u'(x)),  u'(x) = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)
// Computed through exp(-2|u|), so the tail of negative x keeps its digits. Backward needs x. The
// rest of the contract is in activations.h.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_GELU_H_
#define FSDP_TRAIN_TRAINER_OPS_GELU_H_

#include "trainer/ops/activations.h"

namespace fsdp {

inline void GeluForward(Stream& stream, ConstView x, View y) {
  ActivationForward(stream, Activation::kGelu, x, y);
}
inline void GeluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  ActivationBackward(stream, Activation::kGelu, x, dy, dx);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GELU_H_
