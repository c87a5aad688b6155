#include "trainer/ops/cpu/ema_cpu.h"

#include <cmath>

namespace fsdp {

void EmaCpu(ThreadPool& pool, float rate, const float* coefficient, const float* p, int64_t n,
            float* e) {
  constexpr int64_t kGrain = 1024;
  if (!std::isfinite(*coefficient)) return;
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) e[i] += rate * (p[i] - e[i]);
  });
}

}  // namespace fsdp
