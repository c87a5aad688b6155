// Products of bf16 by the processor's own instruction, where it gives the bits that we define.
// Tests: tests/trainer/ops/gemm_bf16_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_

#include <cstdint>

namespace fsdp {

// The definition: sum + a_odd b_odd + a_even b_even in fp32, by two fused multiply-adds in that
// order. A pair is two bf16 of consecutive k, the even one in the lower half; a product of two is
// exact. Threads must flush subnormals to zero, as compute threads do.
float AddPair(float sum, uint32_t a, uint32_t b);

// Whether the processor has AVX512_BF16 (UseAvx512Bf16) and gives AddPair()'s bits in 4,096 fixed
// cases, infinities, NaN and cancellation among them. Determined once.
bool MultiplyPairs();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_
