// GELU of some elements of a tensor, for the kernels of ops: not an op itself. Runs where it is
// called. Formulas, dtypes and aliases: gelu.h.
// Tests: tests/trainer/ops/gelu_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GELU_ELEMENTS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GELU_ELEMENTS_H_

#include <cstdint>

#include "trainer/core/view.h"

namespace fsdp {

// Elements [begin, end).
void GeluForwardElements(const ConstView& x, int64_t begin, int64_t end, const View& y);
void GeluBackwardElements(const ConstView& x, const ConstView& dy, int64_t begin, int64_t end,
                          const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GELU_ELEMENTS_H_
