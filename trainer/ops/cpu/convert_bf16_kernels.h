// Tests: tests/trainer/ops/convert_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_BF16_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_BF16_KERNELS_H_

#include <cstdint>

namespace fsdp {

// y[i] = the bits of BFloat16(x[i]) by the instruction of processors with AVX512_BF16, for the
// first elements; returns their number. It stops before 16 elements that hold a subnormal number,
// and before a last few.
int64_t ConvertBf16(const float* x, int64_t n, uint16_t* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_CONVERT_BF16_KERNELS_H_
