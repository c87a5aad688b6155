#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_SCALER_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_SCALER_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/loss_scaler_options.h"
#include "trainer/ops/loss_scaler_state.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void SetLossScalerCuda(CudaStreamHandle stream, const LossScalerState& values,
                                     const View& state);
[[gnu::weak]] void UpdateLossScalerCuda(CudaStreamHandle stream, const LossScalerOptions& options,
                                        const ConstView& found, const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_SCALER_CUDA_H_
