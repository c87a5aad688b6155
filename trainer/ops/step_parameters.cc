#include "trainer/ops/step_parameters.h"

#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/update_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void UnpackStepInputsCpu(ThreadPool&, const ConstView& inputs, const View& mean_scale,
                         const View& save) {
  const StepInputs& in = *inputs.As<StepInputs>();
  *mean_scale.As<float>() = in.mean_scale;
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

template <typename Block>
void CheckBlock(const Arguments& args, const char* name, const ConstView& block) {
  args.Check(name, block, DType::kUInt8, BlockShape<Block>());
}

}  // namespace

void UnpackStepInputs(Stream& stream, ConstView inputs, View mean_scale, View save) {
  constexpr const char* kOp = "unpack_step_inputs";
  const Arguments args(kOp);
  CheckBlock<StepInputs>(args, "inputs", inputs);
  args.Check("mean_scale", mean_scale, DType::kFloat32, {1});
  args.Check("save", save, DType::kFloat32, {1});
  const Cost cost{.bytes_read = 8, .bytes_written = 8};
  DeviceKernels kernels{.cpu = OnCpu(UnpackStepInputsCpu, inputs, mean_scale, save),
                        .cuda = OnCuda(UnpackStepInputsCuda, inputs, mean_scale, save)};
  stream.Enqueue({kOp, {inputs}, {mean_scale, save}, {cost}, std::move(kernels)});
}

void DeriveUpdateFactors(Stream& stream, double beta1, double beta2, ConstView inputs,
                         ConstView coefficient, View state, View factors) {
  constexpr const char* kOp = "derive_update_factors";
  const Arguments args(kOp);
  args.Require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
               "beta1 and beta2, want in [0, 1)");
  CheckBlock<StepInputs>(args, "inputs", inputs);
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  CheckBlock<StepState>(args, "state", state);
  CheckBlock<UpdateFactors>(args, "factors", factors);
  const Cost cost{.flops = 8,
                  .bytes_read = static_cast<double>(inputs.bytes() + state.bytes() + 4),
                  .bytes_written = static_cast<double>(state.bytes() + factors.bytes())};
  DeviceKernels kernels{
      .cpu = OnCpu(DeriveUpdateFactorsCpu, beta1, beta2, inputs, coefficient, state, factors),
      .cuda = OnCuda(DeriveUpdateFactorsCuda, beta1, beta2, inputs, coefficient, state, factors)};
  stream.Enqueue({kOp, {inputs, coefficient}, {state, factors}, {cost}, std::move(kernels)});
}

void SetUpdates(Stream& stream, int64_t updates, View state) {
  constexpr const char* kOp = "set_updates";
  const Arguments args(kOp);
  args.Require(updates >= 0, "updates, want >= 0");
  CheckBlock<StepState>(args, "state", state);
  const Cost cost{.bytes_written = static_cast<double>(state.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(SetUpdatesCpu, updates, state),
                        .cuda = OnCuda(SetUpdatesCuda, updates, state)};
  stream.Enqueue({kOp, {}, {state}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
