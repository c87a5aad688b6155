#include "trainer/ops/cpu/ema_cpu.h"

#include <cmath>

namespace fsdp {

void EmaCpu(ThreadPool& pool, float rate, const ConstView& coefficient, const ConstView& p,
            const View& e) {
  constexpr int64_t kGrain = 1024;
  if (!std::isfinite(*coefficient.As<float>())) return;
  const float* const value = p.As<float>();
  float* const average = e.As<float>();
  pool.ParallelFor(e.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) average[i] += rate * (value[i] - average[i]);
  });
}

}  // namespace fsdp
