#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ADAMW_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ADAMW_CUDA_H_

#include "trainer/ops/adamw_constants.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void AdamWCuda(CudaStreamHandle stream, const AdamWConstants& constants,
                             const UpdateOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ADAMW_CUDA_H_
