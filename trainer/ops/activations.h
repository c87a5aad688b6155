// Activations: y = f(x), element by element, and dx = dy f'(x). Backward reads `saved`, which is x
// or y:
//   f           saved  formulas
//   kGelu       x      at GeluForward()
//   kRelu       y      y = max(x, 0)            dx = dy where y > 0, else 0
//   kSigmoid    y      y = 1 / (1 + exp(-x))    dx = dy y (1 - y)
//   kGeluExact  x      y = x Phi(x)             dx = dy (Phi(x) + x phi(x))
//
// ReLU is PyTorch's (torch.relu, threshold_backward in aten/src/ATen/native/Activation.cpp): a NaN
// of x passes through, the slope at 0 is 0, and where y is NaN dx is dy. Backward needs y alone,
// which the product behind it keeps anyway.
//
// The sigmoid is computed through exp(-|x|): nothing overflows, and small y keep their digits. Its
// slope is that of the rounded y, as in PyTorch's sigmoid_backward: 0 where y is rounded to 1.
//
// Phi(x) = (1 + erf(x / sqrt 2)) / 2 and phi(x) = exp(-x^2 / 2) / sqrt(2 pi) are the standard
// normal distribution and its density (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2;
// PyTorch's gelu without `approximate`). The relative error of Phi is at most 2^-21 wherever Phi is
// a normal number: normal_tail.h.
//
// Tensors of one element count, any shape, fp32, bf16 or fp16, all of one dtype. Each element is
// computed in fp32 and rounded once. No result depends on how work is split. No workspace. Cost:
// the tensors' bytes once, and FLOPs per element by the table in activations.cc.
#ifndef FSDP_TRAIN_TRAINER_OPS_ACTIVATIONS_H_
#define FSDP_TRAIN_TRAINER_OPS_ACTIVATIONS_H_

#include "trainer/core/view.h"
#include "trainer/ops/activation.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

void ActivationForward(Stream& stream, Activation f, ConstView x, View y);  // y may be x.

// Overwrites dx, which may be dy (or `saved`) itself.
void ActivationBackward(Stream& stream, Activation f, ConstView saved, ConstView dy, View dx);

// GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2; "gelu_new" of
// GPT-2):
//   u(x) = sqrt(2 / pi) (x + 0.044715 x^3)      y = x/2 (1 + tanh u) = x s, s = 1 / (1 + exp(-2u))
//   dx = dy (s + 2 x s (1 - s) u'(x)),  u'(x) = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)
// Computed through exp(-2|u|), so the tail of negative x keeps its digits. Backward needs x.
inline void GeluForward(Stream& stream, ConstView x, View y) {
  ActivationForward(stream, Activation::kGelu, x, y);
}
inline void GeluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  ActivationBackward(stream, Activation::kGelu, x, dy, dx);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ACTIVATIONS_H_
