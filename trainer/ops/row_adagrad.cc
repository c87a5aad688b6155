#include "trainer/ops/row_adagrad.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/row_adagrad_cpu.h"
#include "trainer/ops/cuda/row_adagrad_cuda.h"
#include "trainer/ops/step_blocks.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

void RowAdagrad(Stream& stream, const RowAdagradOptions& options, const RowAdagradOperands& o) {
  constexpr const char* kOp = "row_adagrad";
  const Arguments args(kOp);
  args.Require(options.lr_scale >= 0, "lr_scale, want at least 0");
  args.Require(options.eps > 0, "eps, want more than 0");
  args.Require(options.rank >= 0 && options.rank < options.world, "rank, want in [0, world)");
  args.CheckDType("table", o.table.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank("table", o.table, o.table.dtype, 2);
  args.CheckRank("ids", o.ids, DType::kInt64, 2);
  const int64_t width = o.table.shape[1];
  args.Check("sums", o.sums, DType::kFloat32, {o.table.shape[0]});
  args.Check("gradients", o.gradients, DType::kFloat32, {o.ids.shape[0], o.ids.shape[1], width});
  args.Check("factors", o.factors, DType::kUInt8, BlockShape<UpdateFactors>());
  args.Check("coefficient", o.coefficient, DType::kFloat32, {1});
  args.Check("mean_scale", o.mean_scale, DType::kFloat32, {1});
  if (o.loss_scale) args.Check("loss_scale", *o.loss_scale, DType::kFloat32, {1});
  const std::pair<const char*, ConstView> written[] = {
      {"table", o.table}, {"sums", o.sums}, {"gradients", o.gradients}};
  for (const auto& [name, view] : written) {
    args.CheckDisjoint(name, view, "ids", o.ids);
    args.CheckDisjoint(name, view, "factors", o.factors);
    args.CheckDisjoint(name, view, "coefficient", o.coefficient);
    args.CheckDisjoint(name, view, "mean_scale", o.mean_scale);
  }
  args.CheckDisjoint("table", o.table, "sums", o.sums);
  args.CheckDisjoint("table", o.table, "gradients", o.gradients);
  args.CheckDisjoint("sums", o.sums, "gradients", o.gradients);
  const auto rows = static_cast<double>(o.ids.NumElements());
  const double table = rows * static_cast<double>(width * SizeOf(o.table.dtype));
  const auto gradients = static_cast<double>(o.gradients.bytes());
  const Cost cost{.flops = 6 * rows * static_cast<double>(width),
                  .bytes_read = static_cast<double>(o.ids.bytes()) + gradients + table + 4 * rows,
                  .bytes_written = gradients + table + 4 * rows};
  Operation operation{
      kOp,
      {o.ids, o.gradients, o.factors, o.coefficient, o.mean_scale, o.table, o.sums},
      {o.gradients, o.table, o.sums},
      {cost},
      {.cpu = OnCpu(RowAdagradCpu, options, o), .cuda = OnCuda(RowAdagradCuda, options, o)}};
  if (o.loss_scale) operation.reads.push_back(*o.loss_scale);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
