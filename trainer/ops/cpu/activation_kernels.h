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
  // The same of bf16, given as bits: computed as floats and rounded once.
  void (*forward_bf16)(const uint16_t* x, int64_t n, uint16_t* y);
  void (*backward_bf16)(const uint16_t* saved, const uint16_t* dy, int64_t n, uint16_t* dx);
};

extern const ActivationKernels kActivationsAvx2[kActivations], kActivationsAvx512[kActivations];

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_KERNELS_H_
