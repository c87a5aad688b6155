#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

__global__ void SetLossScalerKernel(const LossScalerState values, LossScalerState* state) {
  *state = values;
}

__global__ void UpdateLossScalerKernel(const LossScalerOptions options, const float* found,
                                       LossScalerState* to) {
  LossScalerState state = *to;
  if (*found != 0) {
    const double lowered = state.scale * options.backoff_factor;
    state.scale = static_cast<float>(lowered < options.min_scale ? options.min_scale : lowered);
    state.good_steps = 0;
  } else {
    state.good_steps += 1;
    if (state.good_steps >= static_cast<float>(options.growth_interval)) {
      const auto grown = static_cast<float>(state.scale * options.growth_factor);
      if (IsFinite(grown)) state.scale = grown;
      state.good_steps = 0;
    }
  }
  *to = state;
}

}  // namespace

void SetLossScalerCuda(CudaStreamHandle stream, const LossScalerState& values, const View& state) {
  Launch<SetLossScalerKernel>(stream, 1, 1, 0, values, state.As<LossScalerState>());
}

void UpdateLossScalerCuda(CudaStreamHandle stream, const LossScalerOptions& options,
                          const ConstView& found, const View& state) {
  Launch<UpdateLossScalerKernel>(stream, 1, 1, 0, options, found.As<float>(),
                                 state.As<LossScalerState>());
}

}  // namespace fsdp
