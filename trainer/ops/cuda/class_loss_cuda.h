#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_CLASS_LOSS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_CLASS_LOSS_CUDA_H_

#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void ClassLossCuda(CudaStreamHandle stream, const LogitLoss& loss);
[[gnu::weak]] void CountCorrectClassesCuda(CudaStreamHandle stream, const LogitLoss& count);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_CLASS_LOSS_CUDA_H_
