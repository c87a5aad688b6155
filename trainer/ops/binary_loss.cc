#include "trainer/ops/binary_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/sigmoid_element.h"
#include "trainer/ops/logit_loss.h"
#include "trainer/ops/loss_backends.h"
#include "trainer/ops/loss_groups.h"

namespace fsdp {
namespace {

// log1p and exp of float64: a call for each row, and there are few.
double Term(double z, double t) {
  return std::max(z, 0.0) - z * t + std::log1p(std::exp(-std::abs(z)));
}

// From a row's factor: that of weight zero is zero, and then z and t may be anything.
void Gradients(const float* z, const float* t, const float* factors, int64_t n, float* dz) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Sigmoid f = SigmoidAt(z[i]);
    const float d = factors[i] * (f.s * (1.0f - t[i]) - f.rest * t[i]);
    dz[i] = factors[i] == 0.0f ? 0.0f : d;
  }
}

double Total(const double* sums, int64_t groups) {
  double total = 0;
  for (int64_t group = 0; group < groups; ++group) total += sums[group];
  return total;
}

void BinaryLossCpu(ThreadPool& pool, const LogitLoss& loss) {
  const int64_t rows = loss.z.shape[0], groups = LossGroups(rows);
  const float* const targets = loss.targets.As<float>();
  const float* const weights = loss.weights.As<float>();
  const float gradient_scale = loss.loss_scale ? *loss.loss_scale->As<float>() : 1;
  double* const sums = loss.workspace.As<double>();
  pool.ParallelFor(groups, 1, [&](int64_t begin, int64_t end) {
    FloatPiece in, out;
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kLossGroup;
      const int64_t n = std::min<int64_t>(kLossGroup, rows - first);
      const float* const z = ReadFloats(loss.z, first, n, in);
      const float *const t = targets + first, *const weight = weights + first;
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (weight[i] != 0) sum += weight[i] * Term(z[i], t[i]);
      }
      sums[group] = sum;
      if (!loss.dz) continue;
      float factors[kLossGroup];
      for (int64_t i = 0; i < n; ++i) factors[i] = loss.scale * weight[i] * gradient_scale;
      float* const to = FloatsToWrite(*loss.dz, first, out);
      Gradients(z, t, factors, n, to);
      WriteFloats(to, n, *loss.dz, first);
    }
  });
  *loss.loss.As<float>() += static_cast<float>(loss.scale * Total(sums, groups));
}

void SumOfTargetsCpu(ThreadPool& pool, const ConstView& targets, const ConstView& weights,
                     const View& sum, const View& workspace) {
  const int64_t rows = targets.shape[0], groups = LossGroups(rows);
  const float *const target = targets.As<float>(), *const weight = weights.As<float>();
  double* const sums = workspace.As<double>();
  pool.ParallelFor(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kLossGroup;
      sums[group] = 0;
      for (int64_t i = first; i < std::min(first + kLossGroup, rows); ++i) {
        if (weight[i] != 0) sums[group] += static_cast<double>(weight[i]) * target[i];
      }
    }
  });
  *sum.As<float>() += static_cast<float>(Total(sums, groups));
}

void Enqueue(const char* name, Stream& stream, const LogitLoss& loss) {
  const int64_t rows = loss.z.shape.rank() > 0 ? loss.z.shape[0] : 0;
  Operation operation = LogitLossOperation({.name = name,
                                            .rank = 1,
                                            .targets = DType::kFloat32,
                                            .workspace_bytes = BinaryLossWorkspaceBytes(rows),
                                            .flops = 40,
                                            .reads_again = false},
                                           loss);
  operation.kernels = {.cpu = OnCpu(BinaryLossCpu, loss), .cuda = OnCuda(BinaryLossCuda, loss)};
  stream.Enqueue(std::move(operation));
}

}  // namespace

int64_t BinaryLossWorkspaceBytes(int64_t rows) {
  return LossGroups(rows) * int64_t{sizeof(double)};
}

void BinaryLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                       float scale, View loss, View workspace) {
  Enqueue("binary_loss_forward", stream,
          {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void BinaryLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                               float scale, const std::optional<ConstView>& loss_scale, View loss,
                               View dz, View workspace) {
  Enqueue("binary_loss_forward_backward", stream,
          {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

void SumOfTargets(Stream& stream, ConstView targets, ConstView weights, View sum, View workspace) {
  constexpr const char* kOp = "sum_of_targets";
  const Arguments args(kOp);
  args.CheckRank("targets", targets, DType::kFloat32, 1);
  const int64_t rows = targets.shape[0], bytes = BinaryLossWorkspaceBytes(rows);
  args.Check("weights", weights, DType::kFloat32, {rows});
  args.Check("sum", sum, DType::kFloat32, {1});
  args.CheckWorkspace(workspace, bytes);
  args.Require(reinterpret_cast<uintptr_t>(workspace.data) % alignof(double) == 0,
               "workspace does not start at a multiple of 8");
  args.CheckDisjoint("sum", sum, "targets", targets);
  args.CheckDisjoint("sum", sum, "weights", weights);
  args.CheckDisjoint("workspace", workspace, "targets", targets);
  args.CheckDisjoint("workspace", workspace, "weights", weights);
  args.CheckDisjoint("workspace", workspace, "sum", sum);
  const Cost cost{
      .flops = 2 * static_cast<double>(rows),
      .bytes_read = static_cast<double>(targets.bytes() + weights.bytes() + sum.bytes()),
      .bytes_written = static_cast<double>(sum.bytes())};
  const OnGpu on_gpu{.launches = (rows > 0 ? 1 : 0) + 1,
                     .extra_bytes = 2 * static_cast<double>(bytes)};
  DeviceKernels kernels{.cpu = OnCpu(SumOfTargetsCpu, targets, weights, sum, workspace),
                        .cuda = OnCuda(SumOfTargetsCuda, targets, weights, sum, workspace)};
  stream.Enqueue({kOp, {targets, weights}, {sum, workspace}, {{cost, on_gpu}}, std::move(kernels)});
}

}  // namespace fsdp
