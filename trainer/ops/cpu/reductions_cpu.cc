#include "trainer/ops/cpu/reductions_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fsdp {
namespace {

constexpr int64_t kChunk = 256;  // Shards are multiples of it: see the layout.
constexpr int64_t kGroups = 64;

float ChunkSum(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace

void SumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const View& out) {
  const int64_t n = x.NumElements();
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::array<double, kGroups> groups{};
  pool.ParallelFor(kGroups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      double sum = 0;
      for (int64_t c = chunks * group / kGroups; c < chunks * (group + 1) / kGroups; ++c) {
        sum += ChunkSum(x.As<float>() + c * kChunk, std::min(kChunk, n - c * kChunk));
      }
      groups[group] = sum;
    }
  });
  double total = *out.As<float>();
  for (const double sum : groups) total += sum;
  *out.As<float>() = static_cast<float>(total);
}

void ClipCoefficientCpu(ThreadPool&, const ConstView& sum_of_squares, const ConstView& mean_scale,
                        float max_norm, const View& norm, const View& coefficient) {
  float c = *mean_scale.As<float>();
  const float n = std::sqrt(*sum_of_squares.As<float>()) * c;
  if (max_norm > 0) c *= std::min(1.0f, max_norm / (n + 1e-6f));
  *norm.As<float>() = n;
  *coefficient.As<float>() = std::isfinite(n) ? c : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace fsdp
