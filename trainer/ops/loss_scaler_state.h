// Tests: tests/trainer/ops/loss_scaler_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_STATE_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_STATE_H_

namespace fsdp {

// The state of loss_scaler.h as it lies in device memory: fp32 [2].
struct LossScalerState {
  float scale = 1;
  float good_steps = 0;  // Steps since the scale last changed or would have grown. A whole number.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_STATE_H_
