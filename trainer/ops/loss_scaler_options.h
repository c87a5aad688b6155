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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_SCALER_OPTIONS_H_
