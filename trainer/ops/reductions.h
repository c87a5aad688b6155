// The norm of a gradient and what clipping makes of it, all on the device.
#ifndef FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_
#define FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_

#include "trainer/runtime/stream.h"

namespace fsdp {

// out[0] += sum_i x[i]^2. x: fp32, any shape; out: [1], fp32.
// Each chunk of 256 elements, counted from x's first, is summed in fp32; chunks are added in
// float64, in groups fixed by the element count, groups in order; one rounding to fp32 at the end.
// So the result does not depend on the number of threads. 2 FLOPs an element; no workspace.
void SumOfSquares(Stream& stream, ConstView x, View out);

// Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does it:
//   norm[0] = sqrt(sum_of_squares[0]) mean_scale[0]
//   coefficient[0] = mean_scale[0] min(1, max_norm / (norm[0] + 1e-6)),  the factor of every
//                    gradient element in AdamW and Sgd
// mean_scale: what turns the gradients as they lie in memory into those of the mean over the step's
// true targets (T0 / T; 1 for full batches). max_norm = 0 turns clipping off: coefficient[0] =
// mean_scale[0]. Where norm[0] is not finite, coefficient[0] is NaN and the optimizers skip the
// step. All tensors: [1], fp32. norm may be sum_of_squares.
void ClipCoefficient(Stream& stream, ConstView sum_of_squares, ConstView mean_scale, float max_norm,
                     View norm, View coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_
