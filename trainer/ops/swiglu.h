// SwiGLU (Shazeer 2020, arXiv:2002.05202) of a gate and a value from one product:
//   y[i,j] = silu(g) u,  g = x[i,j],  u = x[i, inner + j],  silu(g) = g s,  s = 1 / (1 + exp(-g))
//   dg = dy u s (1 + g (1 - s))      du = dy g s
// x, dx: [rows, 2 inner], y, dy: [rows, inner]; fp32, bf16 or fp16, all of one dtype: computed in
// fp32, through exp(-|g|), so that neither tail loses digits, and rounded once. Backward needs x.
// Element by element: no result depends on the number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_
#define FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

void SwigluForward(Stream& stream, ConstView x, View y);  // 20 FLOPs an element of y.

// Overwrites dx, which may be x itself. 26 FLOPs an element of dy.
void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_SWIGLU_H_
