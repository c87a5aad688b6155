// Matrix products for the kernels of other ops: not an op itself. On a stream that has a library
// (gemm_library.h) the library multiplies where it can. Otherwise kernels of ours do, as follows.
//
//   C[m, n] = scale op(A)[m, k] op(B)[k, n] + bias + D        row-major
//
// A, B and C are each fp32, bf16 or fp16; D has C's dtype. Sums are fp32; scale, bias and D are
// applied before the one rounding to C's dtype. The tensor cores (mma.sync) multiply two factors of
// bf16, or two of fp16, unless both are transposed. Fused multiply-adds multiply all others,
// converted exactly. Any size and alignment: where packs of 16 bytes may not be read, single
// elements are, for the same bits.
//
// Every element is summed over k in order (by the tensor cores in groups of 16, whose own order is
// the hardware's). Equal operands therefore give equal bits, whatever else is in the product. k is
// not split among blocks: a product of few rows and columns and a long k leaves most of a GPU idle.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_H_

#include <cstdint>

#include "trainer/ops/gemm_operand.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// Enqueues the product. C overlaps nothing else, but may be D. Throws DeviceError where the launch
// is refused.
void Gemm(CudaStreamHandle stream, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, const GemmResult& c, const GemmEpilogue& epilogue = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_GEMM_H_
