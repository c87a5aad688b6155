#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LOSS_SCALER_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LOSS_SCALER_CPU_H_

#include "trainer/core/view.h"
#include "trainer/ops/loss_scaler_options.h"
#include "trainer/ops/loss_scaler_state.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SetLossScalerCpu(ThreadPool& pool, const LossScalerState& values, const View& state);
void UpdateLossScalerCpu(ThreadPool& pool, const LossScalerOptions& options, const ConstView& found,
                         const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LOSS_SCALER_CPU_H_
