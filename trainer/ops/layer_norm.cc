#include "trainer/ops/layer_norm.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/layer_norm_cpu.h"
#include "trainer/ops/cuda/layer_norm_cuda.h"
#include "trainer/ops/norm_rows.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr const char* kBackward = "layer_norm_backward";

}  // namespace

void LayerNormForward(Stream& stream, ConstView x, ConstView w, ConstView b, float eps, View y,
                      View mean, View rstd) {
  constexpr const char* kOp = "layer_norm_forward";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  const Shape shape = x.shape;
  const int64_t rows = shape[0], cols = shape[1];
  args.Require(cols > 0, "x has no columns");
  args.CheckWeight("w", w, x.dtype, {cols});
  args.CheckWeight("b", b, x.dtype, {cols});
  args.Check("y", y, x.dtype, shape);
  args.Check("mean", mean, DType::kFloat32, {rows});
  args.Check("rstd", rstd, DType::kFloat32, {rows});
  args.CheckSameOrDisjoint("y", y, "x", x);
  args.Require(eps >= kMinLayerNormEps, "eps, want >= kMinLayerNormEps");
  const Cost cost{.flops = 8.0 * rows * cols,
                  .bytes_read = static_cast<double>(x.bytes() + w.bytes() + b.bytes()),
                  .bytes_written = static_cast<double>(y.bytes() + mean.bytes() + rstd.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(LayerNormForwardCpu, x, w, b, eps, y, mean, rstd),
                        .cuda = OnCuda(LayerNormForwardCuda, x, w, b, eps, y, mean, rstd)};
  const OnGpu gpu{.launches = rows > 0};
  stream.Enqueue({kOp, {x, w, b}, {y, mean, rstd}, {{cost, gpu}}, std::move(kernels)});
}

int64_t LayerNormBackwardWorkspaceBytes(int64_t rows, int64_t cols, DType dtype,
                                        DeviceType device) {
  Arguments(kBackward).CheckHasKernels("x", dtype, kFloatDTypes, device);
  return NormBlocks(rows, device) * 2 * cols * sizeof(float);
}

void LayerNormBackward(Stream& stream, ConstView x, ConstView w, ConstView mean, ConstView rstd,
                       ConstView dy, LayerNormDx mode, View dx, std::optional<View> dw,
                       std::optional<View> db, View workspace) {
  const Arguments args(kBackward);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  const Shape shape = x.shape;
  const int64_t rows = shape[0], cols = shape[1];
  args.Require(cols > 0, "x has no columns");
  args.CheckWeight("w", w, x.dtype, {cols});
  args.Check("mean", mean, DType::kFloat32, {rows});
  args.Check("rstd", rstd, DType::kFloat32, {rows});
  args.Check("dy", dy, x.dtype, shape);
  args.Check("dx", dx, x.dtype, shape);
  Operation operation{kBackward, {x, w, mean, rstd, dy}, {dx, workspace}, {}};
  for (const auto& [name, view] : {std::pair("dw", dw), std::pair("db", db)}) {
    if (!view) continue;
    args.CheckGradient(name, *view, {cols});
    operation.writes.push_back(*view);
  }
  args.CheckWorkspace(workspace, LayerNormBackwardWorkspaceBytes(rows, cols, x.dtype,
                                                                 stream.device().kernel_type()));
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckDisjoint("dx", dx, "x", x);
  const bool add = mode == LayerNormDx::kAdd;
  const int64_t sums = (dw ? dw->bytes() : 0) + (db ? db->bytes() : 0);
  const int64_t read = x.bytes() + w.bytes() + mean.bytes() + rstd.bytes() + dy.bytes() +
                       (add ? dx.bytes() : 0) + sums;
  const Cost cost{.flops = 16.0 * rows * cols,
                  .bytes_read = static_cast<double>(read),
                  .bytes_written = static_cast<double>(dx.bytes() + sums)};
  const int64_t blocks = NormBlocks(rows, stream.device().kernel_type());
  // Sums of blocks of rows, for both where either is wanted; a launch for each adds up its own.
  const int64_t wanted = (dw ? 1 : 0) + (db ? 1 : 0);
  const int64_t parts = wanted > 0 ? 2 + wanted : 0;
  operation.costs = {
      {cost, {.launches = 1 + wanted, .extra_bytes = 1.0 * sizeof(float) * parts * blocks * cols}}};
  operation.kernels = {
      .cpu = OnCpu(LayerNormBackwardCpu, x, w, mean, rstd, dy, blocks, add, dx, dw, db, workspace),
      .cuda =
          OnCuda(LayerNormBackwardCuda, x, w, mean, rstd, dy, blocks, add, dx, dw, db, workspace)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
