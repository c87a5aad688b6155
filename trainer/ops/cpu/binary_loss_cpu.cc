#include "trainer/ops/cpu/binary_loss_cpu.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/sigmoid_element.h"
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

}  // namespace

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

}  // namespace fsdp
