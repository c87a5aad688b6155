// Numbers that change from step to step, in device memory. Kernels read them there, so that no
// argument of a kernel changes with the step. They are two blocks of bytes: the host writes the
// first once a step, the device alone writes the second.
#ifndef FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
#define FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The blocks, as they lie in device memory.
struct StepInputs {
  double lr = 0;         // This step's, whether or not it lands.
  float mean_scale = 1;  // T0 / T: see ClipCoefficient (reductions.h).
  float save = 0;        // This rank's request for a checkpoint.
};

struct StepState {
  int64_t updates = 0;  // Steps that have landed: those whose coefficient was finite.
};

// Derived from both blocks, for the optimizers. t: the number of updates, this step's included.
struct UpdateFactors {
  int64_t update = 1;  // t.
  double lr = 0;
  double correction1 = 1;  // 1 - beta1^t.
  float root_factor = 1;   // 1 / sqrt(1 - beta2^t), computed in float64.
};

// A block is uint8 of this shape.
template <typename Block>
Shape BlockShape() {
  return {static_cast<int64_t>(sizeof(Block))};
}

// Copies each number of `inputs` (StepInputs) to a place of its own: [1], fp32.
void UnpackStepInputs(Stream& stream, ConstView inputs, View mean_scale, View save);

// Called once a training step, when its coefficient ([1], fp32) is known and before the optimizer's
// ops. Counts the step in `state` (StepState) and derives `factors` (UpdateFactors). Where the
// coefficient is not finite nothing changes: the optimizer's ops skip the step. beta1 and beta2 lie
// in [0, 1). Powers may differ in their last bits between types of device.
void DeriveUpdateFactors(Stream& stream, double beta1, double beta2, ConstView inputs,
                         ConstView coefficient, View state, View factors);

// state.updates = updates: called before the first step, and on a resume.
void SetUpdates(Stream& stream, int64_t updates, View state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
