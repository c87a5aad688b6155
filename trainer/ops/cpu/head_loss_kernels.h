// The passes of the loss over a row of logits, for each instruction set (isa.h).
// Tests: tests/trainer/ops/head_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_KERNELS_H_

#include <cstdint>

namespace fsdp {

struct HeadLossKernels {
  float (*max)(const float* row, int64_t n);  // n > 0; NaN only where all are.
  // sum_v e^(row[v] - max), in float32 by blocks of 1024 and float64 over blocks.
  double (*sum_of_exp)(const float* row, int64_t n, float max);
  // The same, and each term replaces its logit.
  double (*replace_by_exp)(float* row, int64_t n, float max);
};

extern const HeadLossKernels kHeadLossAvx2, kHeadLossAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_KERNELS_H_
