#include "trainer/ops/logit_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/head_loss_kernels.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/sigmoid_element.h"
#include "trainer/ops/loss_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The properties of one of these losses.
struct LogitLossForm {
  const char* name;
  int rank = 2;                   // The rank of z, whose first dimension is the rows.
  DType targets = DType::kInt32;  // [rows].
  int64_t workspace_bytes = 0;    // Written once and read once.
  double flops = 0;               // Per logit.
  bool reads_again = true;        // Reads z again for its gradient.
  const char* sum = "loss";       // The op's own name for LogitLoss::loss.
};

// The operation without its kernels: one goes over the rows, one adds up their terms. Throws
// std::invalid_argument where an operand is wrong.
Operation LogitLossOperation(const LogitLossForm& form, const LogitLoss& l) {
  const Arguments args(form.name);
  args.CheckDType("z", l.z.dtype, kFloatDTypes);
  args.CheckRank("z", l.z, l.z.dtype, form.rank);
  const int64_t rows = l.z.shape[0];
  args.Check("targets", l.targets, form.targets, {rows});
  args.Check("weights", l.weights, DType::kFloat32, {rows});
  args.Check(form.sum, l.loss, DType::kFloat32, {1});
  args.CheckWorkspace(l.workspace, form.workspace_bytes);
  args.Require(reinterpret_cast<uintptr_t>(l.workspace.data) % alignof(double) == 0,
               "workspace does not start at a multiple of 8");
  Operation operation{.name = form.name,
                      .reads = {l.z, l.targets, l.weights},
                      .writes = {l.loss, l.workspace},
                      .costs = {}};
  if (l.loss_scale) {
    args.Check("loss_scale", *l.loss_scale, DType::kFloat32, {1});
    operation.reads.push_back(*l.loss_scale);
  }
  const auto check_result = [&](const char* name, const View& result) {
    args.CheckDisjoint(name, result, "targets", l.targets);
    args.CheckDisjoint(name, result, "weights", l.weights);
    if (l.loss_scale) args.CheckDisjoint(name, result, "loss_scale", *l.loss_scale);
  };
  check_result(form.sum, l.loss);
  check_result("workspace", l.workspace);
  args.CheckDisjoint(form.sum, l.loss, "z", l.z);
  args.CheckDisjoint("workspace", l.workspace, "z", l.z);
  args.CheckDisjoint("workspace", l.workspace, form.sum, l.loss);
  if (l.dz) {
    args.Check("dz", *l.dz, l.z.dtype, l.z.shape);
    check_result("dz", *l.dz);
    args.CheckSameOrDisjoint("dz", *l.dz, "z", l.z);
    args.CheckDisjoint("dz", *l.dz, form.sum, l.loss);
    args.CheckDisjoint("dz", *l.dz, "workspace", l.workspace);
    operation.writes.push_back(*l.dz);
  }
  const int64_t read = l.z.bytes() + l.targets.bytes() + l.weights.bytes() + l.loss.bytes();
  const Cost cost{
      .flops = form.flops * static_cast<double>(l.z.NumElements()),
      .bytes_read = static_cast<double>(read),
      .bytes_written = static_cast<double>(l.loss.bytes() + (l.dz ? l.dz->bytes() : 0))};
  const int64_t extra = 2 * form.workspace_bytes + (l.dz && form.reads_again ? l.z.bytes() : 0);
  operation.costs.emplace_back(
      cost, OnGpu{.launches = (rows > 0 ? 1 : 0) + 1, .extra_bytes = static_cast<double>(extra)});
  return operation;
}

constexpr int64_t kGrain = 1024;  // Logits.

void Scale(float factor, int64_t n, float* values) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) values[i] *= factor;
}

// Comparisons with a NaN do not hold.
bool IsFirstHighest(const float* z, int64_t classes, int64_t target) {
  const float highest = z[target];
  int64_t others = 0;
#pragma omp simd reduction(+ : others)
  for (int64_t v = 0; v < target; ++v) others += z[v] < highest ? 0 : 1;
#pragma omp simd reduction(+ : others)
  for (int64_t v = target; v < classes; ++v) others += z[v] <= highest ? 0 : 1;
  return others == 0;
}

void AddTerms(const LogitLoss& loss) {
  const double* const terms = loss.workspace.As<double>();
  double total = 0;
  for (int64_t i = 0; i < loss.z.shape[0]; ++i) total += terms[i];
  *loss.loss.As<float>() += static_cast<float>(loss.scale * total);
}

void ClassLossCpu(ThreadPool& pool, const LogitLoss& loss) {
  const ConstView& z = loss.z;
  const std::optional<View>& dz = loss.dz;
  const int32_t* const targets = loss.targets.As<int32_t>();
  const float* const weights = loss.weights.As<float>();
  const HeadLossKernels& kernels = ForThisCpu(kHeadLossAvx2, kHeadLossAvx512);
  const int64_t rows = z.shape[0], classes = z.shape[1];
  const double gradient_scale = loss.loss_scale ? *loss.loss_scale->As<float>() : 1;
  double* const terms = loss.workspace.As<double>();
  pool.ParallelFor(rows, std::max<int64_t>(1, kGrain / classes), [&](int64_t begin, int64_t end) {
    RowBuffers buffer(z.dtype, 1, classes);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * classes;
      const float weight = weights[i];
      float* const e = dz ? FloatsToWrite(*dz, at, buffer[0]) : nullptr;
      if (weight == 0) {
        terms[i] = 0;
        if (!dz) continue;
        std::fill_n(e, classes, 0.0f);
        WriteFloats(e, classes, *dz, at);
        continue;
      }
      const float* const row = ReadFloats(z, at, classes, buffer[0]);
      const float max = kernels.max(row, classes), target = row[targets[i]];
      double sum;
      if (dz) {
        if (e != row) std::copy_n(row, classes, e);
        sum = kernels.replace_by_exp(e, classes, max);
      } else {
        sum = kernels.sum_of_exp(row, classes, max);
      }
      terms[i] = weight * (std::log(sum) + (static_cast<double>(max) - target));
      if (!dz) continue;
      // factor (e - [target] sum).
      e[targets[i]] -= static_cast<float>(sum);
      Scale(static_cast<float>(loss.scale * weight / sum * gradient_scale), classes, e);
      WriteFloats(e, classes, *dz, at);
    }
  });
  AddTerms(loss);
}

void CountCorrectClassesCpu(ThreadPool& pool, const LogitLoss& count) {
  const ConstView& z = count.z;
  const int32_t* const targets = count.targets.As<int32_t>();
  const float* const weights = count.weights.As<float>();
  const int64_t rows = z.shape[0], classes = z.shape[1];
  double* const terms = count.workspace.As<double>();
  pool.ParallelFor(rows, std::max<int64_t>(1, kGrain / classes), [&](int64_t begin, int64_t end) {
    RowBuffers buffer(z.dtype, 1, classes);
    for (int64_t i = begin; i < end; ++i) {
      terms[i] = 0;
      if (weights[i] == 0) continue;
      const float* const row = ReadFloats(z, i * classes, classes, buffer[0]);
      if (IsFirstHighest(row, classes, targets[i])) terms[i] = weights[i];
    }
  });
  AddTerms(count);
}

// `form`: name, FLOPs and sum.
void EnqueueOfClasses(LogitLossForm form, Stream& stream, const LogitLoss& loss, CpuKernel cpu,
                      CudaKernel cuda) {
  form.rank = 2;
  form.targets = DType::kInt32;
  form.workspace_bytes = ClassLossWorkspaceBytes(loss.z.shape.rank() > 0 ? loss.z.shape[0] : 0);
  form.reads_again = true;
  Operation operation = LogitLossOperation(form, loss);
  Arguments(form.name).Require(loss.z.shape[1] > 0, "z has no columns");
  operation.kernels = {.cpu = std::move(cpu), .cuda = std::move(cuda)};
  stream.Enqueue(std::move(operation));
}

void EnqueueClassLoss(const char* name, Stream& stream, const LogitLoss& loss) {
  EnqueueOfClasses({.name = name, .flops = 4}, stream, loss, OnCpu(ClassLossCpu, loss),
                   OnCuda(ClassLossCuda, loss));
}

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

void EnqueueBinaryLoss(const char* name, Stream& stream, const LogitLoss& loss) {
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

int64_t ClassLossWorkspaceBytes(int64_t rows) { return rows * int64_t{sizeof(double)}; }

void ClassLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                      float scale, View loss, View workspace) {
  EnqueueClassLoss("class_loss_forward", stream,
                   {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void ClassLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                              float scale, const std::optional<ConstView>& loss_scale, View loss,
                              View dz, View workspace) {
  EnqueueClassLoss("class_loss_forward_backward", stream,
                   {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

void CountCorrectClasses(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                         View correct, View workspace) {
  const LogitLoss count{z, targets, weights, 1, std::nullopt, correct, std::nullopt, workspace};
  const LogitLossForm form{.name = "count_correct_classes", .flops = 2, .sum = "correct"};
  EnqueueOfClasses(form, stream, count, OnCpu(CountCorrectClassesCpu, count),
                   OnCuda(CountCorrectClassesCuda, count));
}

int64_t BinaryLossWorkspaceBytes(int64_t rows) {
  return LossGroups(rows) * int64_t{sizeof(double)};
}

void BinaryLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                       float scale, View loss, View workspace) {
  EnqueueBinaryLoss("binary_loss_forward", stream,
                    {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void BinaryLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                               float scale, const std::optional<ConstView>& loss_scale, View loss,
                               View dz, View workspace) {
  EnqueueBinaryLoss("binary_loss_forward_backward", stream,
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
