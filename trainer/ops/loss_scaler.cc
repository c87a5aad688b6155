#include "trainer/ops/loss_scaler.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/loss_scaler_cpu.h"
#include "trainer/ops/cuda/loss_scaler_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

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
