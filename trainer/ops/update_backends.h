// Kernels of a step's end: adamw.h, element_rules.h, loss_scaler.h, row_adagrad.h, sgd.h,
// step_parameters.h.
// Tests: tests/trainer/ops/adamw_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/adamw_constants.h"
#include "trainer/ops/element_rule.h"
#include "trainer/ops/loss_scaler_options.h"
#include "trainer/ops/loss_scaler_state.h"
#include "trainer/ops/row_adagrad_operands.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// adamw.h
[[gnu::weak]] void AdamWCuda(CudaStreamHandle stream, const AdamWConstants& constants,
                             const UpdateOperands& operands);

// element_rules.h
// The most rules of one launch, which are among its arguments.
inline constexpr int kRulesOfLaunch = 64;

[[gnu::weak]] void WriteRulesCuda(CudaStreamHandle stream, const std::vector<ElementRule>& rules,
                                  const View& table);

// loss_scaler.h
[[gnu::weak]] void SetLossScalerCuda(CudaStreamHandle stream, const LossScalerState& values,
                                     const View& state);
[[gnu::weak]] void UpdateLossScalerCuda(CudaStreamHandle stream, const LossScalerOptions& options,
                                        const ConstView& found, const View& state);

// row_adagrad.h
[[gnu::weak]] void RowAdagradCuda(CudaStreamHandle stream, const RowAdagradOptions& options,
                                  const RowAdagradOperands& operands);

// sgd.h
[[gnu::weak]] void SgdCuda(CudaStreamHandle stream, float momentum, const UpdateOperands& operands);

// step_parameters.h
[[gnu::weak]] void UnpackStepInputsCuda(CudaStreamHandle stream, const ConstView& inputs,
                                        const View& mean_scale, const View& stop, const View& save);
[[gnu::weak]] void DeriveUpdateFactorsCuda(CudaStreamHandle stream, double beta1, double beta2,
                                           const ConstView& inputs, const ConstView& coefficient,
                                           const View& state, const View& factors);
[[gnu::weak]] void SetUpdatesCuda(CudaStreamHandle stream, int64_t updates, const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_
