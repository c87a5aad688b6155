// Converts rows of one floating-point dtype to another, to nearest, ties to even; not an op itself.
// Tests: tests/trainer/ops/convert_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_H_

#include <cstdint>

#include "trainer/core/dtype.h"

namespace fsdp {

// y[i] = x[i], i < n. The two do not overlap.
void Convert(const float* x, int64_t n, BFloat16* y);
void Convert(const float* x, int64_t n, Float16* y);
void Convert(const BFloat16* x, int64_t n, float* y);
void Convert(const BFloat16* x, int64_t n, Float16* y);
void Convert(const Float16* x, int64_t n, float* y);
void Convert(const Float16* x, int64_t n, BFloat16* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_H_
