#include <cmath>

#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

__global__ void UnpackStepInputsKernel(const StepInputs* inputs, float* mean_scale, float* save) {
  *mean_scale = inputs->mean_scale;
  *save = inputs->save;
}

__global__ void DeriveUpdateFactorsKernel(double beta1, double beta2, const StepInputs* inputs,
                                          const float* coefficient, StepState* state,
                                          UpdateFactors* factors) {
  if (!IsFinite(*coefficient)) return;
  const int64_t update = ++state->updates;
  const double t = static_cast<double>(update);
  factors->update = update;
  factors->lr = inputs->lr;
  factors->correction1 = 1 - pow(beta1, t);
  factors->root_factor = static_cast<float>(1 / sqrt(1 - pow(beta2, t)));
}

__global__ void SetUpdatesKernel(int64_t updates, StepState* state) { state->updates = updates; }

}  // namespace

void UnpackStepInputsCuda(CudaStreamHandle stream, const ConstView& inputs, const View& mean_scale,
                          const View& save) {
  Launch<UnpackStepInputsKernel>(stream, 1, 1, 0, inputs.As<StepInputs>(), mean_scale.As<float>(),
                                 save.As<float>());
}

void DeriveUpdateFactorsCuda(CudaStreamHandle stream, double beta1, double beta2,
                             const ConstView& inputs, const ConstView& coefficient,
                             const View& state, const View& factors) {
  Launch<DeriveUpdateFactorsKernel>(stream, 1, 1, 0, beta1, beta2, inputs.As<StepInputs>(),
                                    coefficient.As<float>(), state.As<StepState>(),
                                    factors.As<UpdateFactors>());
}

void SetUpdatesCuda(CudaStreamHandle stream, int64_t updates, const View& state) {
  Launch<SetUpdatesKernel>(stream, 1, 1, 0, updates, state.As<StepState>());
}

}  // namespace fsdp
