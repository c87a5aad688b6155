#include "trainer/ops/cpu/sgd_cpu.h"

#include <cmath>

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

void Update(const SgdRuleFactors& f, float c, const float* g, int64_t n, float* __restrict p) {
  for (int64_t i = 0; i < n; ++i) p[i] -= f.lr * (c * g[i] + f.weight_decay * p[i]);
}

void UpdateWithMomentum(const SgdRuleFactors& f, float momentum, float c, const float* g, int64_t n,
                        float* __restrict p, float* __restrict b) {
  for (int64_t i = 0; i < n; ++i) {
    const float bi = momentum * b[i] + (c * g[i] + f.weight_decay * p[i]);
    b[i] = bi;
    p[i] -= f.lr * bi;
  }
}

}  // namespace

void SgdCpu(ThreadPool& pool, float momentum, const std::vector<ElementRule>& rules,
            const std::vector<SgdRuleFactors>& by_rule, const ConstView& coefficient,
            const ConstView& g, const View& p, const View& b) {
  const float c = *coefficient.As<float>();
  if (!std::isfinite(c)) return;
  pool.ParallelFor(p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int rule) {
      const SgdRuleFactors& own = rule < 0 ? by_rule.back() : by_rule[rule];
      const float* const gradient = g.As<float>() + at;
      if (b.data == nullptr) {
        Update(own, c, gradient, stop - at, p.As<float>() + at);
      } else {
        UpdateWithMomentum(own, momentum, c, gradient, stop - at, p.As<float>() + at,
                           b.As<float>() + at);
      }
    });
  });
}

}  // namespace fsdp
