#include "trainer/ops/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/update_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

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

}  // namespace

void SetLossScaler(Stream& stream, const LossScalerState& values, View state) {
  constexpr const char* kOp = "set_loss_scaler";
  const Arguments args(kOp);
  args.Check("state", state, DType::kFloat32, {kLossScalerFloats});
  const Cost cost{.bytes_written = static_cast<double>(state.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(SetLossScalerCpu, values, state),
                        .cuda = OnCuda(SetLossScalerCuda, values, state)};
  stream.Enqueue({kOp, {}, {state}, {cost}, std::move(kernels)});
}

void UpdateLossScaler(Stream& stream, const LossScalerOptions& options, ConstView found,
                      View state) {
  constexpr const char* kOp = "update_loss_scaler";
  const Arguments args(kOp);
  args.Check("found", found, DType::kFloat32, {1});
  args.Check("state", state, DType::kFloat32, {kLossScalerFloats});
  args.CheckDisjoint("state", state, "found", found);
  const Cost cost{.flops = 2,
                  .bytes_read = static_cast<double>(found.bytes() + state.bytes()),
                  .bytes_written = static_cast<double>(state.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(UpdateLossScalerCpu, options, found, state),
                        .cuda = OnCuda(UpdateLossScalerCuda, options, found, state)};
  stream.Enqueue({kOp, {found}, {state}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
