#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_

#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

[[gnu::weak]] void BinaryLossCuda(CudaStreamHandle stream, const LogitLoss& loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_
