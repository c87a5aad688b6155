// Matrix products for the kernels of other ops: not an op itself. On a stream that has a library
// (gemm_library.h) by that, where it can; else, as said below, by kernels of ours.
//
//   C[m, n] = scale op(A)[m, k] op(B)[k, n] + bias + D        row-major
//
// A, B and C are each fp32, bf16 or fp16, D of C's dtype. Sums are fp32; scale, bias and D come in
// before the one rounding to C's dtype. Two factors of bf16, or two of fp16, are multiplied by the
// tensor cores (mma.sync); where both are transposed, and all others, converted exactly, by fused
// multiply-add. Any size and alignment: where packs of 16 bytes may not be read, elements are, for
// the same bits.
//
// Every element is summed over k in order (the tensor cores' in groups of 16, whose own order is
// the hardware's): equal operands give equal bits, whatever else is in the product. k is not split
// among blocks: a product of few rows and columns and a long k leaves most of a GPU idle.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_H_

#include <cstdint>

#include "trainer/ops/gemm_operand.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

// Enqueues it. C overlaps nothing else, but may be D. Throws DeviceError where the launch is
// refused.
void Gemm(CudaStreamHandle stream, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, const GemmResult& c, const GemmEpilogue& epilogue = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_H_
