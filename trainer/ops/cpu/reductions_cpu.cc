#include "trainer/ops/cpu/reductions_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

constexpr int64_t kChunk = 256;  // Shards are multiples of it: see the layout.
constexpr int64_t kGroups = 64;

// Eight sums take turns, and the rest goes to the first, so no compiler chooses the order.
float ChunkSum(const float* x, int64_t n) {
  constexpr int64_t kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::fma(x[i + lane], x[i + lane], lanes[lane]);
    }
  }
  for (; i < n; ++i) lanes[0] = std::fma(x[i], x[i], lanes[0]);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// chunk_sum(const float* elements, n, group) of each chunk, added up as the header says.
template <typename ChunkSum>
void AddSums(ThreadPool& pool, const ConstView& x, const View& out, const ChunkSum& chunk_sum) {
  const int64_t n = x.NumElements();
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::array<double, kGroups> groups{};
  pool.ParallelFor(kGroups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      double sum = 0;
      for (int64_t c = chunks * group / kGroups; c < chunks * (group + 1) / kGroups; ++c) {
        const int64_t count = std::min(kChunk, n - c * kChunk);
        float buffer[kChunk];
        sum += chunk_sum(ReadFloats(x, c * kChunk, count, buffer), count, group);
      }
      groups[group] = sum;
    }
  });
  double total = *out.As<float>();
  for (const double sum : groups) total += sum;
  *out.As<float>() = static_cast<float>(total);
}

}  // namespace

void SumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const View& out) {
  AddSums(pool, x, out, [](const float* from, int64_t n, int64_t) { return ChunkSum(from, n); });
}

void UnscaledSumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const ConstView& scale,
                             const View& out, const View& found) {
  const double inverse = 1 / static_cast<double>(*scale.As<float>());
  std::array<int64_t, kGroups> not_finite{};
  AddSums(pool, x, out, [&](const float* from, int64_t n, int64_t group) {
    float unscaled[kChunk];
    int count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) {
      unscaled[i] = static_cast<float>(from[i] * inverse);
      count += std::abs(from[i]) <= std::numeric_limits<float>::max() ? 0 : 1;
    }
    not_finite[group] += count;
    return ChunkSum(unscaled, n);
  });
  int64_t count = 0;
  for (const int64_t in_group : not_finite) count += in_group;
  *found.As<float>() += static_cast<float>(count);
}

void ClipCoefficientCpu(ThreadPool&, const ConstView& loss, const ConstView& sum_of_squares,
                        const ConstView& mean_scale, const std::optional<LossScaling>& scaling,
                        float max_norm, const View& norm, const View& coefficient) {
  float c = *mean_scale.As<float>();
  float n = std::sqrt(*sum_of_squares.As<float>()) * c;
  if (scaling && *scaling->found_inf.As<float>() != 0) n = std::numeric_limits<float>::infinity();
  if (max_norm > 0) c *= std::min(1.0f, max_norm / (n + 1e-6f));
  if (scaling) c = static_cast<float>(c / static_cast<double>(*scaling->scale.As<float>()));
  const bool lands = std::isfinite(n) && std::isfinite(*loss.As<float>());
  *norm.As<float>() = n;
  *coefficient.As<float>() = lands ? c : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace fsdp
