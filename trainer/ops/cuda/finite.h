// Whether a number is finite, by its bits, for kernels: -0.0 and subnormal numbers count as finite.
// Tests: tests/trainer/ops/reductions_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_FINITE_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_FINITE_H_

#include <cuda_runtime.h>

namespace fsdp {

__device__ inline bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_FINITE_H_
