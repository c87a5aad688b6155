// A product by the tensor cores, for gemm.cu: two factors of bf16 or of fp16, not both transposed.
// Tests: tests/trainer/ops/cuda_gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_MMA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_MMA_H_

#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

struct GemmArgs;

// `large`: tiles of 128 x 128, else 64 x 64. Packs are of 8 elements.
void GemmByMma(CudaStreamHandle stream, const GemmArgs& args, bool large);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GEMM_MMA_H_
