// What changes from step to step, in device memory: kernels read it there, so that no number of a
// step is an argument of one. Two blocks, as bytes: the host writes the first once a step, the
// second is the device's own.
#ifndef FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
#define FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_

#include <cstdint>

#include "trainer/runtime/stream.h"

namespace fsdp {

struct StepInputs {
  double lr = 0;             // Of this step, whether or not it lands.
  float mean_scale = 1;      // T0 / T: see ClipCoefficient (reductions.h).
  float stop = 0, save = 0;  // What this rank has been asked for.
};

struct StepState {
  int64_t updates = 0;  // Steps that have landed: those whose coefficient was finite.
};

// What the optimizers derive from both. t: the updates so far, with this step's.
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

// What `inputs` (StepInputs) says, each to a place of its own: [1], fp32.
void UnpackStepInputs(Stream& stream, ConstView inputs, View mean_scale, View stop, View save);

// Once a training step, when its coefficient ([1], fp32) is known and before the optimizer's ops:
// counts it in `state` (StepState) and derives `factors` (UpdateFactors). Where the coefficient is
// not finite nothing changes: the optimizer's ops skip the step. beta1 and beta2 in [0, 1).
void DeriveUpdateFactors(Stream& stream, double beta1, double beta2, ConstView inputs,
                         ConstView coefficient, View state, View factors);

// state.updates = updates: before the first step, and on a resume.
void SetUpdates(Stream& stream, int64_t updates, View state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STEP_PARAMETERS_H_
