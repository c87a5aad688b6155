// The loss scale of training in fp16. Gradients are computed times the scale, so that small ones do
// not become zero. A step whose gradient overflows is skipped, and the scale is lowered. The rules
// are those of torch.amp.GradScaler (aten/src/ATen/native/cuda/AmpKernels.cu), with a floor, all on
// the device.
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_H_

#include "trainer/core/view.h"
#include "trainer/ops/loss_scaler_options.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

inline constexpr int64_t kLossScalerFloats = sizeof(LossScalerState) / sizeof(float);

// Overwrites `state`, at the start of a run and on a resume.
void SetLossScaler(Stream& stream, const LossScalerState& values, View state);

// Called once a step, when `found` is known. found: [1], fp32, the number of elements of the
// gradient, over all ranks, that are not finite.
//   found > 0:                         scale = max(scale backoff_factor, min_scale), good_steps = 0
//   else, ++good_steps = growth_interval: scale = scale growth_factor if that is finite,
//                                      good_steps = 0
// Products are float64 and rounded once.
void UpdateLossScaler(Stream& stream, const LossScalerOptions& options, ConstView found,
                      View state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_H_
