// GELU of n elements, for each instruction set (isa.h). Formulas and aliases: gelu.h.
// Tests: tests/trainer/ops/gelu_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GELU_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GELU_KERNELS_H_

#include <cstdint>

namespace fsdp {

struct GeluKernels {
  void (*forward)(const float* x, int64_t n, float* y);
  void (*backward)(const float* x, const float* dy, int64_t n, float* dx);
};

extern const GeluKernels kGeluAvx2, kGeluAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GELU_KERNELS_H_
