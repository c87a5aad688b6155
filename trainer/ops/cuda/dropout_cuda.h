#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_DROPOUT_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_DROPOUT_CUDA_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// An element is kept where its word is at least `threshold`.
[[gnu::weak]] void DropoutCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& keys,
                               uint32_t site, uint32_t threshold, float scale, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_DROPOUT_CUDA_H_
