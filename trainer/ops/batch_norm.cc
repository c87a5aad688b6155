#include "trainer/ops/batch_norm.h"

#include <string>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/batch_norm_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

double Bytes(const ConstView& view) { return static_cast<double>(view.bytes()); }

// x [samples, ..., channels]; the last dimension has elements.
BatchNormShape CheckImages(const Arguments& args, const char* name, const ConstView& x) {
  args.CheckDType(name, x.dtype, kFloatDTypes);
  args.Check(name, x, x.dtype, x.shape);
  const int rank = x.shape.rank();
  if (rank < 2 || x.NumElements() == 0) {
    args.Fail(std::string(name) + " is " + x.shape.ToString() +
              ", want [samples, ..., channels] with elements");
  }
  const int64_t samples = x.shape[0], channels = x.shape[rank - 1];
  return {samples, x.NumElements() / samples / channels, channels};
}

struct Operands {
  ConstView x, statistics, w, b;
};
BatchNormShape CheckOperands(const Arguments& args, const Operands& o) {
  const BatchNormShape shape = CheckImages(args, "x", o.x);
  args.Check("statistics", o.statistics, DType::kFloat32, {1 + 2 * shape.channels});
  args.CheckWeight("w", o.w, o.x.dtype, {shape.channels});
  args.CheckWeight("b", o.b, o.x.dtype, {shape.channels});
  return shape;
}
void CheckBeside(const Arguments& args, const char* name, const View& result, const Operands& o) {
  args.CheckDisjoint(name, result, "statistics", o.statistics);
  args.CheckDisjoint(name, result, "w", o.w);
  args.CheckDisjoint(name, result, "b", o.b);
}

// Costs of two kernels: sums of pieces, and sums of those.
std::vector<KernelCost> CostsOfSums(const BatchNormShape& s, double flops, double read,
                                    double written, double read_again) {
  const double pieces = 2 * 4 * static_cast<double>(s.pieces() * s.channels);
  return {{Cost{.flops = flops, .bytes_read = read, .bytes_written = written},
           OnGpu{.launches = 2, .extra_bytes = 2 * pieces + read_again}}};
}

}  // namespace

int64_t BatchNormWorkspaceBytes(const Shape& x) {
  const int rank = x.rank();
  if (rank < 2 || x.NumElements() == 0) return 0;
  const BatchNormShape shape{x[0], x.NumElements() / x[0] / x[rank - 1], x[rank - 1]};
  return shape.pieces() * 2 * shape.channels * int64_t{sizeof(float)};
}

void BatchMoments(Stream& stream, ConstView x, ConstView weights, View part, View workspace) {
  constexpr const char* kOp = "batch_moments";
  const Arguments args(kOp);
  const BatchNormShape s = CheckImages(args, "x", x);
  args.Check("weights", weights, DType::kFloat32, {s.samples});
  args.Check("part", part, DType::kFloat32, {1 + 2 * s.channels});
  args.CheckWorkspace(workspace, BatchNormWorkspaceBytes(x.shape));
  args.CheckDisjoint("part", part, "x", x);
  args.CheckDisjoint("part", part, "weights", weights);
  args.CheckDisjoint("workspace", workspace, "x", x);
  args.CheckDisjoint("workspace", workspace, "part", part);
  const auto elements = static_cast<double>(x.NumElements());
  stream.Enqueue({kOp,
                  {x, weights},
                  {part, workspace},
                  CostsOfSums(s, 4 * elements, Bytes(x) + Bytes(weights), Bytes(part), 0),
                  {OnCpu(BatchMomentsCpu, s, x, weights, part, workspace),
                   OnCuda(BatchMomentsCuda, s, x, weights, part, workspace)}});
}

void JoinMoments(Stream& stream, ConstView parts, float eps, View statistics,
                 const std::optional<RunningMoments>& running) {
  constexpr const char* kOp = "join_moments";
  const Arguments args(kOp);
  args.CheckRank("parts", parts, DType::kFloat32, 2);
  const int64_t width = parts.shape[1];
  args.Require(width % 2 == 1 && width > 1 && parts.shape[0] > 0,
               "parts are not [ranks, 1 + 2 channels]");
  args.Check("statistics", statistics, DType::kFloat32, {width});
  args.CheckDisjoint("statistics", statistics, "parts", parts);
  Operation operation{kOp, {parts}, {statistics}, {}};
  std::optional<View> mean, variance;
  double bytes = 0;
  if (running) {
    mean = running->mean, variance = running->variance;
    args.Require(0 <= running->momentum && running->momentum <= 1, "momentum is outside [0, 1]");
    for (const auto& [name, view] : {std::pair{"mean", *mean}, {"variance", *variance}}) {
      args.Check(name, view, DType::kFloat32, {width / 2});
      args.CheckDisjoint(name, view, "parts", parts);
      args.CheckDisjoint(name, view, "statistics", statistics);
      operation.reads.push_back(view);
      operation.writes.push_back(view);
      bytes += Bytes(view);
    }
    args.CheckDisjoint("mean", *mean, "variance", *variance);
  }
  const float momentum = running ? running->momentum : 0;
  const Cost cost{.flops = 8 * static_cast<double>(parts.NumElements()),
                  .bytes_read = Bytes(parts) + bytes,
                  .bytes_written = Bytes(statistics) + bytes};
  operation.costs = {cost};
  operation.kernels = {
      .cpu = OnCpu(JoinMomentsCpu, parts, eps, statistics, momentum, mean, variance),
      .cuda = OnCuda(JoinMomentsCuda, parts, eps, statistics, momentum, mean, variance)};
  stream.Enqueue(std::move(operation));
}

void UseRunningMoments(Stream& stream, ConstView mean, ConstView variance, float eps,
                       View statistics) {
  constexpr const char* kOp = "use_running_moments";
  const Arguments args(kOp);
  args.CheckRank("mean", mean, DType::kFloat32, 1);
  args.Check("variance", variance, DType::kFloat32, mean.shape);
  args.Check("statistics", statistics, DType::kFloat32, {1 + 2 * mean.shape[0]});
  args.CheckDisjoint("statistics", statistics, "mean", mean);
  args.CheckDisjoint("statistics", statistics, "variance", variance);
  const Cost cost{.flops = 3 * static_cast<double>(mean.NumElements()),
                  .bytes_read = Bytes(mean) + Bytes(variance),
                  .bytes_written = Bytes(statistics)};
  stream.Enqueue({kOp,
                  {mean, variance},
                  {statistics},
                  {cost},
                  {OnCpu(UseRunningMomentsCpu, mean, variance, eps, statistics),
                   OnCuda(UseRunningMomentsCuda, mean, variance, eps, statistics)}});
}

void BatchNormForward(Stream& stream, ConstView x, ConstView statistics, ConstView w, ConstView b,
                      bool relu, View y) {
  constexpr const char* kOp = "batch_norm_forward";
  const Arguments args(kOp);
  const Operands operands{x, statistics, w, b};
  const BatchNormShape s = CheckOperands(args, operands);
  args.Check("y", y, x.dtype, x.shape);
  args.CheckSameOrDisjoint("y", y, "x", x);
  CheckBeside(args, "y", y, operands);
  const Cost cost{.flops = (relu ? 3 : 2) * static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(statistics) + Bytes(w) + Bytes(b),
                  .bytes_written = Bytes(y)};
  stream.Enqueue({kOp,
                  {x, statistics, w, b},
                  {y},
                  {cost},
                  {OnCpu(BatchNormForwardCpu, s, x, statistics, w, b, relu, y),
                   OnCuda(BatchNormForwardCuda, s, x, statistics, w, b, relu, y)}});
}

void BatchNormSums(Stream& stream, ConstView x, ConstView statistics, ConstView w, ConstView b,
                   bool relu, ConstView dy, std::optional<View> dw, std::optional<View> db,
                   View sums, View workspace) {
  constexpr const char* kOp = "batch_norm_sums";
  const Arguments args(kOp);
  const Operands operands{x, statistics, w, b};
  const BatchNormShape s = CheckOperands(args, operands);
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("sums", sums, DType::kFloat32, {2, s.channels});
  args.CheckWorkspace(workspace, BatchNormWorkspaceBytes(x.shape));
  Operation operation{kOp, {x, statistics, w, b, dy}, {sums, workspace}, {}};
  double read = Bytes(x) + Bytes(dy) + Bytes(statistics) + Bytes(w) + Bytes(b);
  double written = Bytes(sums);
  const auto check = [&](const char* name, const View& view) {
    args.CheckDisjoint(name, view, "x", x);
    args.CheckDisjoint(name, view, "dy", dy);
    CheckBeside(args, name, view, operands);
  };
  check("sums", sums);
  check("workspace", workspace);
  args.CheckDisjoint("workspace", workspace, "sums", sums);
  const auto add = [&](const char* name, const std::optional<View>& gradient) {
    if (!gradient) return;
    args.CheckGradient(name, *gradient, {s.channels});
    check(name, *gradient);
    args.CheckDisjoint(name, *gradient, "sums", sums);
    args.CheckDisjoint(name, *gradient, "workspace", workspace);
    operation.reads.push_back(*gradient);
    operation.writes.push_back(*gradient);
    read += Bytes(*gradient), written += Bytes(*gradient);
  };
  add("dw", dw);
  add("db", db);
  if (dw && db) args.CheckDisjoint("dw", *dw, "db", *db);
  operation.costs =
      CostsOfSums(s, (relu ? 6 : 4) * static_cast<double>(x.NumElements()), read, written, 0);
  operation.kernels = {
      .cpu = OnCpu(BatchNormSumsCpu, s, x, statistics, w, b, relu, dy, dw, db, sums, workspace),
      .cuda = OnCuda(BatchNormSumsCuda, s, x, statistics, w, b, relu, dy, dw, db, sums, workspace)};
  stream.Enqueue(std::move(operation));
}

void BatchNormBackward(Stream& stream, ConstView x, ConstView weights, ConstView statistics,
                       ConstView w, ConstView b, bool relu, ConstView sums, ConstView dy, View dx) {
  constexpr const char* kOp = "batch_norm_backward";
  const Arguments args(kOp);
  const Operands operands{x, statistics, w, b};
  const BatchNormShape s = CheckOperands(args, operands);
  args.Check("weights", weights, DType::kFloat32, {s.samples});
  args.Check("sums", sums, DType::kFloat32, {2, s.channels});
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "weights", weights);
  args.CheckDisjoint("dx", dx, "sums", sums);
  CheckBeside(args, "dx", dx, operands);
  const Cost cost{.flops = (relu ? 8 : 6) * static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(dy) + Bytes(weights) + Bytes(statistics) +
                                Bytes(sums) + Bytes(w) + Bytes(b),
                  .bytes_written = Bytes(dx)};
  stream.Enqueue(
      {kOp,
       {x, weights, statistics, w, b, sums, dy},
       {dx},
       {cost},
       {OnCpu(BatchNormBackwardCpu, s, x, weights, statistics, w, b, relu, sums, dy, dx),
        OnCuda(BatchNormBackwardCuda, s, x, weights, statistics, w, b, relu, sums, dy, dx)}});
}

}  // namespace fsdp
