#include "trainer/ops/cpu/running_statistics_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {

void UpdateRunningMeanCpu(ThreadPool& pool, const ConstView& x, const ConstView& weights,
                          float momentum, const View& running) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const float* weight = weights.As<float>();
  const auto counted = rows - std::count(weight, weight + rows, 0.0f);
  if (counted == 0) return;
  constexpr int64_t kChunk = 256;  // Columns at a time.
  pool.ParallelFor((columns + kChunk - 1) / kChunk, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * kChunk, n = std::min(kChunk, columns - begin);
      double sums[kChunk] = {};
      for (int64_t row = 0; row < rows; ++row) {
        if (weight[row] == 0) continue;
        float buffer[kChunk];
        const float* from = ReadFloats(x, row * columns + begin, n, buffer);
        for (int64_t j = 0; j < n; ++j) sums[j] += from[j];
      }
      float* to = running.As<float>() + begin;
      for (int64_t j = 0; j < n; ++j) {
        const double mean = sums[j] / static_cast<double>(counted);
        to[j] = static_cast<float>(to[j] + momentum * (mean - to[j]));
      }
    }
  });
}

void CountBatchCpu(ThreadPool&, const View& count) { *count.As<int64_t>() += 1; }

void TakeUnlessNaNCpu(ThreadPool& pool, const ConstView& coefficient, float divisor,
                      const ConstView& from, const View& to) {
  if (std::isnan(*coefficient.As<float>())) return;
  if (to.dtype == DType::kInt64) {
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
    return;
  }
  constexpr int64_t kGrain = 4096;
  pool.ParallelFor(to.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.As<float>()[i] = from.As<float>()[i] / divisor;
  });
}

}  // namespace fsdp
