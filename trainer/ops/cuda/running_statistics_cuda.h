#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_RUNNING_STATISTICS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_RUNNING_STATISTICS_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void CountBatchCuda(CudaStreamHandle stream, const View& count);
[[gnu::weak]] void TakeUnlessNaNCuda(CudaStreamHandle stream, const ConstView& coefficient,
                                     float divisor, const ConstView& from, const View& to);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_RUNNING_STATISTICS_CUDA_H_
