#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTWISE_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTWISE_CUDA_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// fp32, bf16 or fp16: all operands have y's dtype.
[[gnu::weak]] void AddCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                           const View& y);
[[gnu::weak]] void ScaleCuda(CudaStreamHandle stream, float factor, const View& y);
// bits: the low ones of each element of 2 or 4 bytes.
[[gnu::weak]] void FillCuda(CudaStreamHandle stream, uint32_t bits, const View& y);
// Also to and from pinned host memory.
[[gnu::weak]] void CopyCuda(CudaStreamHandle stream, const ConstView& x, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENTWISE_CUDA_H_
