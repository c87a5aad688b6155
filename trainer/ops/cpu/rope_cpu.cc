#include "trainer/ops/cpu/rope_cpu.h"

#include <cmath>

namespace fsdp {

void RopeTableCpu(ThreadPool& pool, const std::vector<double>& frequencies, double factor,
                  const View& table) {
  const auto n = static_cast<int64_t>(frequencies.size());
  pool.ParallelFor(table.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float *cosines = table.As<float>() + p * 2 * n, *sines = cosines + n;
      for (int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        cosines[i] = static_cast<float>(factor * std::cos(angle));
        sines[i] = static_cast<float>(factor * std::sin(angle));
      }
    }
  });
}

void RopeCpu(ThreadPool& pool, const RopeShape& s, const ConstView& table,
             const ConstView& position_ids, bool backward, const Heads& x) {
  const int32_t* const positions = position_ids.As<int32_t>();
  const float sign = backward ? -1.0f : 1.0f;
  pool.ParallelFor(s.tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float *c = table.As<float>() + positions[t] * 2 * s.half, *sines = c + s.half;
      for (int64_t h = 0; h < s.heads; ++h) {
        float *a = x.data() + t * x.stride() + h * 2 * s.half, *b = a + s.half;
#pragma omp simd
        for (int64_t i = 0; i < s.half; ++i) {
          const float first = a[i], second = b[i], sine = sign * sines[i];
          a[i] = first * c[i] - second * sine;
          b[i] = second * c[i] + first * sine;
        }
      }
    }
  });
}

}  // namespace fsdp
