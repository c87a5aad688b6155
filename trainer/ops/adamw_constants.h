// Tests: tests/trainer/ops/adamw_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ADAMW_CONSTANTS_H_
#define FSDP_TRAIN_TRAINER_OPS_ADAMW_CONSTANTS_H_

namespace fsdp {

// AdamWOptions (adamw.h) as the factors that kernels multiply with.
struct AdamWConstants {
  float beta1_new;  // 1 - beta1.
  float beta2_old, beta2_new;
  float eps;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ADAMW_CONSTANTS_H_
