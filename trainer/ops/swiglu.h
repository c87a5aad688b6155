// Gated units (Shazeer 2020, arXiv:2002.05202, equation 6): a gate and a value from one product.
//   y[i,j] = f(g) u,  g = x[i,j],  u = x[i, inner + j]      dg = dy u f'(g)      du = dy f(g)
//
// SwiGLU:  f = silu(g) = g s,  s = 1 / (1 + exp(-g))        f'(g) = s (1 + g (1 - s))
// GEGLU:   f = gelu(g) in its tanh form: transformers' "gated-gelu", gelu_new(wi_0 x) wi_1
// x
//
// x, dx: [rows, 2 inner], y, dy: [rows, inner]; fp32, bf16 or fp16, all of one dtype. Results are
// computed in fp32 and rounded once; the CPU takes exponentials of numbers <= 0 only, so that
// neither tail loses digits. Backward needs x. Each element is computed by itself, so no result
// depends on the number of threads. No workspace.
#ifndef FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_
#define FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Backward overwrites dx, which may be x itself.
void SwigluForward(Stream& stream, ConstView x, View y);  // 20 FLOPs an element of y.
void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx);  // 26 of dy.

void GatedGeluForward(Stream& stream, ConstView x, View y);  // 26 FLOPs an element of y.
void GatedGeluBackward(Stream& stream, ConstView x, ConstView dy, View dx);  // 39 of dy.

// SwiGLU with a weight a row:   y[i,j] = weights[i] silu(g) u
// weights fp32 [rows]. offsets int32 [N + 1], where given: rows before offsets[0] and from
// offsets[N] on are neither read nor written (expert_rows.h). The cost counts one of `parts` equal
// shares of the rows.
void WeightedSwigluForward(Stream& stream, ConstView x, ConstView weights,
                           std::optional<ConstView> offsets, View y,
                           int64_t parts = 1);  // 21 FLOPs an element of y.
// Overwrites dx, which may be x itself, and dweights fp32 [rows] = sum_j dy[i,j] silu(g) u.
void WeightedSwigluBackward(Stream& stream, ConstView x, ConstView weights,
                            std::optional<ConstView> offsets, ConstView dy, View dx, View dweights,
                            int64_t parts = 1);  // 29 of dy.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_
