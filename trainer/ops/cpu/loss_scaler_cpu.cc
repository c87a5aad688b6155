#include "trainer/ops/cpu/loss_scaler_cpu.h"

#include <algorithm>
#include <cmath>

namespace fsdp {

void SetLossScalerCpu(ThreadPool&, const LossScalerState& values, const View& state) {
  *state.As<LossScalerState>() = values;
}

void UpdateLossScalerCpu(ThreadPool&, const LossScalerOptions& options, const ConstView& found,
                         const View& state_view) {
  LossScalerState& state = *state_view.As<LossScalerState>();
  if (*found.As<float>() != 0) {
    state.scale =
        static_cast<float>(std::max(state.scale * options.backoff_factor, options.min_scale));
    state.good_steps = 0;
    return;
  }
  state.good_steps += 1;
  if (state.good_steps < static_cast<float>(options.growth_interval)) return;
  const auto grown = static_cast<float>(state.scale * options.growth_factor);
  if (std::isfinite(grown)) state.scale = grown;
  state.good_steps = 0;
}

}  // namespace fsdp
