#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_STEP_PARAMETERS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_STEP_PARAMETERS_CUDA_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void UnpackStepInputsCuda(CudaStreamHandle stream, const ConstView& inputs,
                                        const View& mean_scale, const View& stop, const View& save);
[[gnu::weak]] void DeriveUpdateFactorsCuda(CudaStreamHandle stream, double beta1, double beta2,
                                           const ConstView& inputs, const ConstView& coefficient,
                                           const View& state, const View& factors);
[[gnu::weak]] void SetUpdatesCuda(CudaStreamHandle stream, int64_t updates, const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_STEP_PARAMETERS_CUDA_H_
