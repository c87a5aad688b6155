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

void SumOfSquaresCpu(ThreadPool& pool, const float* x, int64_t n, float* out) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::array<double, kGroups> groups{};
  pool.ParallelFor(kGroups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      double sum = 0;
      for (int64_t c = chunks * group / kGroups; c < chunks * (group + 1) / kGroups; ++c) {
        sum += ChunkSum(x + c * kChunk, std::min(kChunk, n - c * kChunk));
      }
      groups[group] = sum;
    }
  });
  double total = *out;
  for (const double sum : groups) total += sum;
  *out = static_cast<float>(total);
}

void ClipCoefficientCpu(float sum_of_squares, float mean_scale, float max_norm, float* norm,
                        float* coefficient) {
  const float n = std::sqrt(sum_of_squares) * mean_scale;
  float c = mean_scale;
  if (max_norm > 0) c *= std::min(1.0f, max_norm / (n + 1e-6f));
  *norm = n;
  *coefficient = std::isfinite(n) ? c : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace fsdp
