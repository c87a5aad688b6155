// The innermost loops of Gemm(), for each instruction set (isa.h).
//
// A tile of C, kRows x kCols, stays in registers while k runs: an element is the sum over k in
// order, by fused multiply-add, from zero. That holds for every width, so the bits of a product
// do not depend on the instruction set.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_KERNELS_H_

#include <cstdint>

#include "trainer/ops/cpu/gemm/gemm_strip.h"

namespace fsdp {

extern const GemmKernels kGemmAvx2, kGemmAvx512;

// Products of bf16 by VDPBF16PS. A step of k has two elements of consecutive k, the even one first
// in memory. It is two fused multiply-adds, the odd element's first, with subnormals zero. Its bits
// are those of the other kernels where k runs 1, 0, 3, 2, ... in a thread that flushes subnormals
// to zero.
extern const GemmKernels kGemmBf16;

// One step of k in 16 sums, by VDPBF16PS.
void AddPairsBf16(const uint32_t* a, const uint32_t* b, float* sums);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_KERNELS_H_
