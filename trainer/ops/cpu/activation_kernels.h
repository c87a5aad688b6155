// Activations of n elements, for each instruction set (isa.h). Formulas and aliases: activations.h.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_KERNELS_H_

#include <cstdint>

#include "trainer/ops/activation.h"

namespace fsdp {

struct ActivationKernels {
  void (*forward)(const float* x, int64_t n, float* y);
  void (*backward)(const float* saved, const float* dy, int64_t n, float* dx);
};

extern const ActivationKernels kActivationsAvx2[kActivations], kActivationsAvx512[kActivations];

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_KERNELS_H_
