// An activation of some elements of a tensor, for the kernels of ops: not an op itself. Runs on the
// calling thread. Formulas, dtypes and aliases: activations.h.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_ELEMENTS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_ELEMENTS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/activation.h"

namespace fsdp {

// Elements [begin, end).
void ActivationForwardElements(Activation f, const ConstView& x, int64_t begin, int64_t end,
                               const View& y);
void ActivationBackwardElements(Activation f, const ConstView& saved, const ConstView& dy,
                                int64_t begin, int64_t end, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATION_ELEMENTS_H_
