#include "trainer/ops/class_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/head_loss_kernels.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/logit_loss.h"
#include "trainer/ops/loss_backends.h"

namespace fsdp {
namespace {

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
void Enqueue(LogitLossForm form, Stream& stream, const LogitLoss& loss, CpuKernel cpu,
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

void EnqueueLoss(const char* name, Stream& stream, const LogitLoss& loss) {
  Enqueue({.name = name, .flops = 4}, stream, loss, OnCpu(ClassLossCpu, loss),
          OnCuda(ClassLossCuda, loss));
}

}  // namespace

int64_t ClassLossWorkspaceBytes(int64_t rows) { return rows * int64_t{sizeof(double)}; }

void ClassLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                      float scale, View loss, View workspace) {
  EnqueueLoss("class_loss_forward", stream,
              {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void ClassLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                              float scale, const std::optional<ConstView>& loss_scale, View loss,
                              View dz, View workspace) {
  EnqueueLoss("class_loss_forward_backward", stream,
              {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

void CountCorrectClasses(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                         View correct, View workspace) {
  const LogitLoss count{z, targets, weights, 1, std::nullopt, correct, std::nullopt, workspace};
  const LogitLossForm form{.name = "count_correct_classes", .flops = 2, .sum = "correct"};
  Enqueue(form, stream, count, OnCpu(CountCorrectClassesCpu, count),
          OnCuda(CountCorrectClassesCuda, count));
}

}  // namespace fsdp
