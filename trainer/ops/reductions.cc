#include "trainer/ops/reductions.h"

#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/reductions_cpu.h"
#include "trainer/ops/cuda/reductions_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The workspace as what the operation writes; empty where its device needs none.
std::vector<Range> CheckedWorkspace(const Arguments& args, const Stream& stream,
                                    const View& workspace) {
  const int64_t bytes = SumOfSquaresWorkspaceBytes(stream.device().kernel_type());
  args.CheckWorkspace(workspace, bytes);
  if (bytes == 0) return {};
  return {workspace};
}

// Sums of groups, and a launch that adds them up.
OnGpu SquaresOnGpu(int64_t n) {
  const int64_t groups = SquaresGroups(n);
  return {.launches = groups > 0 ? 2 : 1,
          .extra_bytes = 2.0 * static_cast<double>(groups * sizeof(SquaresOfGroup))};
}

}  // namespace

int64_t SumOfSquaresWorkspaceBytes(DeviceType device) {
  Arguments("sum_of_squares").CheckHasKernels("x", DType::kFloat32, kFloatDTypes, device);
  return device == DeviceType::kCuda ? kMaxSquaresGroups * sizeof(SquaresOfGroup) : 0;
}

void SumOfSquares(Stream& stream, ConstView x, View out, View workspace) {
  constexpr const char* kOp = "sum_of_squares";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.Check("out", out, DType::kFloat32, {1});
  args.CheckDisjoint("out", out, "x", x);
  const Cost cost{.flops = 2.0 * n,
                  .bytes_read = static_cast<double>(x.bytes() + out.bytes()),
                  .bytes_written = static_cast<double>(out.bytes())};
  std::vector<Range> writes = CheckedWorkspace(args, stream, workspace);
  writes.push_back(out);
  DeviceKernels kernels{.cpu = OnCpu(SumOfSquaresCpu, x, out),
                        .cuda = OnCuda(SumOfSquaresCuda, x, out, workspace)};
  stream.Enqueue({kOp, {x}, std::move(writes), {{cost, SquaresOnGpu(n)}}, std::move(kernels)});
}

void UnscaledSumOfSquares(Stream& stream, ConstView x, ConstView scale, View out, View found,
                          View workspace) {
  constexpr const char* kOp = "unscaled_sum_of_squares";
  const Arguments args(kOp);
  const int64_t n = x.NumElements();
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckElements("x", x, x.dtype, n);
  args.Check("scale", scale, DType::kFloat32, {1});
  args.Check("out", out, DType::kFloat32, {1});
  args.Check("found", found, DType::kFloat32, {1});
  args.CheckDisjoint("out", out, "x", x);
  args.CheckDisjoint("found", found, "x", x);
  args.CheckDisjoint("found", found, "out", out);
  const Cost cost{.flops = 4.0 * n,
                  .bytes_read = static_cast<double>(x.bytes() + scale.bytes() + 2 * out.bytes()),
                  .bytes_written = static_cast<double>(2 * out.bytes())};
  std::vector<Range> writes = CheckedWorkspace(args, stream, workspace);
  writes.insert(writes.end(), {out, found});
  DeviceKernels kernels{.cpu = OnCpu(UnscaledSumOfSquaresCpu, x, scale, out, found),
                        .cuda = OnCuda(UnscaledSumOfSquaresCuda, x, scale, out, found, workspace)};
  stream.Enqueue(
      {kOp, {x, scale}, std::move(writes), {{cost, SquaresOnGpu(n)}}, std::move(kernels)});
}

void ClipCoefficient(Stream& stream, ConstView loss, ConstView sum_of_squares, ConstView mean_scale,
                     const std::optional<LossScaling>& scaling, float max_norm, View norm,
                     View coefficient) {
  constexpr const char* kOp = "clip_coefficient";
  const Arguments args(kOp);
  args.Check("loss", loss, DType::kFloat32, {1});
  args.Check("sum_of_squares", sum_of_squares, DType::kFloat32, {1});
  args.Check("mean_scale", mean_scale, DType::kFloat32, {1});
  args.Check("norm", norm, DType::kFloat32, {1});
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckDisjoint("coefficient", coefficient, "norm", norm);
  args.Require(max_norm >= 0, "max_norm, want >= 0");
  std::vector<Range> reads{loss, sum_of_squares, mean_scale};
  if (scaling) {
    args.Check("scale", scaling->scale, DType::kFloat32, {1});
    args.Check("found_inf", scaling->found_inf, DType::kFloat32, {1});
    reads.insert(reads.end(), {scaling->scale, scaling->found_inf});
  }
  const Cost cost{.flops = 7,
                  .bytes_read = 4 * static_cast<double>(reads.size()),
                  .bytes_written = static_cast<double>(norm.bytes() + coefficient.bytes())};
  std::optional<ConstView> scale, found;
  if (scaling) scale = scaling->scale, found = scaling->found_inf;
  DeviceKernels kernels{.cpu = OnCpu(ClipCoefficientCpu, loss, sum_of_squares, mean_scale, scaling,
                                     max_norm, norm, coefficient),
                        .cuda = OnCuda(ClipCoefficientCuda, loss, sum_of_squares, mean_scale, scale,
                                       found, max_norm, norm, coefficient)};
  stream.Enqueue({kOp, std::move(reads), {norm, coefficient}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
