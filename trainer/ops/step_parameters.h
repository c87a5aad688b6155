// What changes from step to step, in device memory: kernels read it there, so that no number of a
// step is an argument of one. Two blocks, as bytes: the host writes the first once a step, the
// second is the device's own.
#ifndef FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
#define FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_

#include <cstdint>

#include "trainer/ops/step_blocks.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A block is uint8 of this shape.
template <typename Block>
Shape BlockShape() {
  return {static_cast<int64_t>(sizeof(Block))};
}

// What `inputs` (StepInputs) says, each to a place of its own: [1], fp32.
void UnpackStepInputs(Stream& stream, ConstView inputs, View mean_scale, View stop, View save);

// Once a training step, when its coefficient ([1], fp32) is known and before the optimizer's ops:
// counts it in `state` (StepState) and derives `factors` (UpdateFactors). Where the coefficient is
// not finite nothing changes: the optimizer's ops skip the step. beta1 and beta2 in [0, 1). Between
// types of device powers may differ in their last bits.
void DeriveUpdateFactors(Stream& stream, double beta1, double beta2, ConstView inputs,
                         ConstView coefficient, View state, View factors);

// state.updates = updates: before the first step, and on a resume.
void SetUpdates(Stream& stream, int64_t updates, View state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
