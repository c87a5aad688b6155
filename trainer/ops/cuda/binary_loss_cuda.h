#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_

#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void BinaryLossCuda(CudaStreamHandle stream, const LogitLoss& loss);
[[gnu::weak]] void SumOfTargetsCuda(CudaStreamHandle stream, const ConstView& targets,
                                    const ConstView& weights, const View& sum,
                                    const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BINARY_LOSS_CUDA_H_
