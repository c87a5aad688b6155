#include "trainer/ops/sgd_cpu.h"

#include <cmath>

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

void Update(const SgdFactors& f, float decay, float c, const float* g, int64_t n,
            float* __restrict p) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] -= f.lr * (c * g[i] + decay * p[i]);
}

void UpdateWithMomentum(const SgdFactors& f, float decay, float c, const float* g, int64_t n,
                        float* __restrict p, float* __restrict b) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float bi = f.momentum * b[i] + (c * g[i] + decay * p[i]);
    b[i] = bi;
    p[i] -= f.lr * bi;
  }
}

}  // namespace

void SgdCpu(ThreadPool& pool, const SgdFactors& factors,
            const std::vector<ElementRange>& decay_ranges, const float* coefficient, const float* g,
            int64_t n, float* p, float* b) {
  const float c = *coefficient;
  if (!std::isfinite(c)) return;
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(decay_ranges, begin, end, [&](int64_t at, int64_t stop, bool decays) {
      const float decay = decays ? factors.weight_decay : 0.0f;
      if (b == nullptr) {
        Update(factors, decay, c, g + at, stop - at, p + at);
      } else {
        UpdateWithMomentum(factors, decay, c, g + at, stop - at, p + at, b + at);
      }
    });
  });
}

}  // namespace fsdp
