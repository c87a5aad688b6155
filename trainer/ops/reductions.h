// The norm of a gradient and the factor of clipping, all on the device.
#ifndef FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_
#define FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Bytes of the workspace of the two sums on this device (never kSim), for any x: at most 16 KiB.
int64_t SumOfSquaresWorkspaceBytes(DeviceType device);

// out[0] += sum_i x[i]^2. x: fp32, bf16 or fp16, any shape; out: [1], fp32.
// Each chunk of 256 elements, counted from x's first, is summed in fp32. Chunks are added in
// float64, in groups and an order that the element count fixes, and the result is rounded once to
// fp32. So the bits depend on the type of device, but neither on threads nor on the device's model.
// 2 FLOPs per element.
void SumOfSquares(Stream& stream, ConstView x, View out, View workspace);

// The same for a gradient in fp32, bf16 or fp16 that has been multiplied by scale[0]:
//   out[0]   += sum_i (x[i] / scale[0])^2
//   found[0] += the number of x[i] that are not finite
// Elements are divided, and rounded to fp32, before they are squared, so a scale cannot make the
// squares of a finite gradient overflow. scale, out, found: [1], fp32; scale > 0.
void UnscaledSumOfSquares(Stream& stream, ConstView x, ConstView scale, View out, View found,
                          View workspace);

// Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does it:
//   norm[0] = sqrt(sum_of_squares[0]) mean_scale[0]; infinite where found_inf[0] > 0
//   coefficient[0] = mean_scale[0] min(1, max_norm / (norm[0] + 1e-6)),  the factor of every
//                    gradient element in AdamW and Sgd, divided by loss_scale[0] if there is one
// mean_scale: turns the gradients as they lie in memory into those of the mean over the step's true
// targets (T0 / T; 1 for full batches). max_norm = 0 turns clipping off: coefficient[0] =
// mean_scale[0]. Where norm[0] or loss[0] is not finite, coefficient[0] is NaN and the optimizers
// skip the step. All tensors: [1], fp32. norm may be sum_of_squares.
struct LossScaling {
  ConstView scale, found_inf;
};
template <typename Visit>
void ForEachAddress(LossScaling& scaling, const Visit& visit) {
  visit(scaling.scale);
  visit(scaling.found_inf);
}
void ClipCoefficient(Stream& stream, ConstView loss, ConstView sum_of_squares, ConstView mean_scale,
                     const std::optional<LossScaling>& scaling, float max_norm, View norm,
                     View coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_H_
