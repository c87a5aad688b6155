// Tests: tests/trainer/ops/loss_scaler_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_OPTIONS_H_

#include <cstdint>

namespace fsdp {

// Constants of the rules in loss_scaler.h, as the device gets them and a recipe gives them.
struct LossScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // Steps without an overflow before the scale grows.
  double min_scale = 1;

  bool operator==(const LossScalerOptions&) const = default;
};

// The state of loss_scaler.h as it lies in device memory: fp32 [2].
struct LossScalerState {
  float scale = 1;
  float good_steps = 0;  // Steps since the scale last changed or would have grown. A whole number.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_OPTIONS_H_
