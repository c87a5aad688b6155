#include "trainer/ops/cpu/step_parameters_cpu.h"

#include <cmath>

#include "trainer/ops/step_blocks.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {

void UnpackStepInputsCpu(ThreadPool&, const ConstView& inputs, const View& mean_scale,
                         const View& stop, const View& save) {
  const StepInputs& in = *inputs.As<StepInputs>();
  *mean_scale.As<float>() = in.mean_scale;
  *stop.As<float>() = in.stop;
  *save.As<float>() = in.save;
}

void DeriveUpdateFactorsCpu(ThreadPool&, double beta1, double beta2, const ConstView& inputs,
                            const ConstView& coefficient, const View& state, const View& factors) {
  if (!std::isfinite(*coefficient.As<float>())) return;
  const int64_t update = ++state.As<StepState>()->updates;
  const double t = static_cast<double>(update);
  *factors.As<UpdateFactors>() = {
      .update = update,
      .lr = inputs.As<StepInputs>()->lr,
      .correction1 = 1 - std::pow(beta1, t),
      .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)))};
}

void SetUpdatesCpu(ThreadPool&, int64_t updates, const View& state) {
  *state.As<StepState>() = {.updates = updates};
}

}  // namespace fsdp
