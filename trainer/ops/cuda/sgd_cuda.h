#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_SGD_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_SGD_CUDA_H_

#include "trainer/ops/update.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void SgdCuda(CudaStreamHandle stream, float momentum, const UpdateOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_SGD_CUDA_H_
