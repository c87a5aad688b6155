#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_CAST_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_CAST_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The dtypes differ. x may lie in pinned host memory.
[[gnu::weak]] void CastCuda(CudaStreamHandle stream, const ConstView& x, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_CAST_CUDA_H_
