#include "trainer/ops/cpu/adamw_cpu.h"

#include <cmath>

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

// One loop for all rules: a factor of 1 changes no bit.
void Update(const AdamWFactors& f, const AdamWRuleFactors& rule, float c, const float* g, int64_t n,
            float* __restrict p, float* __restrict m, float* __restrict v) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = c * g[i];
    const float mi = m[i] + f.beta1_new * (gradient - m[i]);
    const float vi = f.beta2_old * v[i] + f.beta2_new * gradient * gradient;
    m[i] = mi;
    v[i] = vi;
    p[i] = rule.keep * p[i] - rule.step_size * (mi / (std::sqrt(vi) * f.root_factor + f.eps));
  }
}

}  // namespace

void AdamWCpu(ThreadPool& pool, const AdamWFactors& factors, const std::vector<ElementRule>& rules,
              const std::vector<AdamWRuleFactors>& by_rule, const ConstView& coefficient,
              const ConstView& g, const View& p, const View& m, const View& v) {
  const float c = *coefficient.As<float>();
  if (!std::isfinite(c)) return;
  pool.ParallelFor(p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int rule) {
      const AdamWRuleFactors& own = rule < 0 ? by_rule.back() : by_rule[rule];
      Update(factors, own, c, g.As<float>() + at, stop - at, p.As<float>() + at, m.As<float>() + at,
             v.As<float>() + at);
    });
  });
}

}  // namespace fsdp
