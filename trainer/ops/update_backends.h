// Kernels of a step's end: element_rules.h, loss_scaler.h, row_adagrad.h, step_parameters.h,
// update.h.
// Tests: tests/trainer/ops/adamw_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/loss_scaler_options.h"
#include "trainer/ops/row_adagrad.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The operands of an update, as its kernel gets them.
struct UpdateOperands {
  ConstView rules, factors, coefficient, g;
  View p;
  View states[2];  // Empty where the rule keeps less.
  UpdateExtras extras;
  View absmax[2] = {};  // For states that are codes.
};
template <typename Visit>
void ForEachAddress(UpdateOperands& o, const Visit& visit) {
  visit(o.rules), visit(o.factors), visit(o.coefficient), visit(o.g), visit(o.p);
  visit(o.states[0]), visit(o.states[1]), visit(o.extras.copy), visit(o.extras.average);
  visit(o.absmax[0]), visit(o.absmax[1]);
}

// AdamWOptions as the factors that kernels multiply with.
struct AdamWConstants {
  float beta1_new;  // 1 - beta1.
  float beta2_old, beta2_new;
  float eps;
};

[[gnu::weak]] void AdamWCuda(CudaStreamHandle stream, const AdamWConstants& constants,
                             const UpdateOperands& operands);
[[gnu::weak]] void AdamWCodedCuda(CudaStreamHandle stream, const AdamWConstants& constants,
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

[[gnu::weak]] void SgdCuda(CudaStreamHandle stream, float momentum, const UpdateOperands& operands);

// MomentumOptions as the factors that kernels multiply with.
struct MomentumConstants {
  float fresh;  // 1 - momentum.
  float ahead;  // 1 - momentum with Nesterov's momentum, otherwise 0.
};
[[gnu::weak]] void MomentumCuda(CudaStreamHandle stream, const MomentumConstants& constants,
                                const UpdateOperands& operands);
[[gnu::weak]] void MomentumCodedCuda(CudaStreamHandle stream, const MomentumConstants& constants,
                                     const UpdateOperands& operands);

// step_parameters.h
[[gnu::weak]] void UnpackStepInputsCuda(CudaStreamHandle stream, const ConstView& inputs,
                                        const View& mean_scale, const View& save);
[[gnu::weak]] void DeriveUpdateFactorsCuda(CudaStreamHandle stream, double beta1, double beta2,
                                           const ConstView& inputs, const ConstView& coefficient,
                                           const View& state, const View& factors);
[[gnu::weak]] void SetUpdatesCuda(CudaStreamHandle stream, int64_t updates, const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_UPDATE_BACKENDS_H_
