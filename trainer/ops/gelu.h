// GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2; "gelu_new" of
// GPT-2):
//   u(x) = sqrt(2 / pi) (x + 0.044715 x^3)      y = x/2 (1 + tanh u) = x s, s = 1 / (1 + exp(-2u))
//   dx = dy (s + 2 x s (1 - s) u'(x)),  u'(x) = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)
// Computed through exp(-2|u|), so the tail of negative x keeps its digits.
// Tensors of one element count, any shape, fp32, bf16 or fp16, all of one dtype: computed in fp32,
// rounded once. Backward needs x. Element by element: no result depends on how work is split.
#ifndef FSDP_TRAIN_TRAINER_OPS_GELU_H_
#define FSDP_TRAIN_TRAINER_OPS_GELU_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

inline constexpr double kGeluForwardFlops = 25, kGeluBackwardFlops = 35;  // An element.

void GeluForward(Stream& stream, ConstView x, View y);  // y may be x.

// Overwrites dx, which may be dy (or x) itself.
void GeluBackward(Stream& stream, ConstView x, ConstView dy, View dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GELU_H_
