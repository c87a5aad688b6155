// The blocks of step_parameters.h, as they lie in device memory.
// Tests: tests/trainer/ops/step_parameters_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_STEP_BLOCKS_H_
#define FSDP_TRAIN_TRAINER_OPS_STEP_BLOCKS_H_

#include <cstdint>

namespace fsdp {

struct StepInputs {
  double lr = 0;             // This step's, whether or not it lands.
  float mean_scale = 1;      // T0 / T: see ClipCoefficient (reductions.h).
  float stop = 0, save = 0;  // This rank's requests.
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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STEP_BLOCKS_H_
