#include "trainer/ops/cpu/adamw_cpu.h"

#include <cmath>

#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

// Of the elements of a rule, for s lr and its weight decay.
struct RuleFactors {
  float keep;       // 1 - s lr wd.
  float step_size;  // s lr / (1 - beta1^t).
};

RuleFactors FactorsOf(const ElementRule& rule, const UpdateFactors& of) {
  const double lr = rule.lr_scale * of.lr;
  return {.keep = static_cast<float>(1 - lr * rule.weight_decay),
          .step_size = static_cast<float>(lr / of.correction1)};
}

// One loop for all rules: a factor of 1 changes no bit.
void Update(const AdamWConstants& f, float root_factor, const RuleFactors& rule, float c,
            const float* g, int64_t n, float* __restrict p, float* __restrict m,
            float* __restrict v) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = c * g[i];
    const float mi = m[i] + f.beta1_new * (gradient - m[i]);
    const float vi = f.beta2_old * v[i] + f.beta2_new * gradient * gradient;
    m[i] = mi;
    v[i] = vi;
    p[i] = rule.keep * p[i] - rule.step_size * (mi / (std::sqrt(vi) * root_factor + f.eps));
  }
}

}  // namespace

void AdamWCpu(ThreadPool& pool, const AdamWConstants& constants, const ConstView& rules,
              const ConstView& factors, const ConstView& coefficient, const ConstView& g,
              const View& p, const View& m, const View& v) {
  const float c = *coefficient.As<float>();
  if (!std::isfinite(c)) return;
  const UpdateFactors& of = *factors.As<UpdateFactors>();
  const std::span<const ElementRule> table = RulesIn(rules);
  pool.ParallelFor(p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(table, begin, end, [&](int64_t at, int64_t stop, int rule) {
      const RuleFactors own = FactorsOf(rule < 0 ? ElementRule() : table[rule], of);
      Update(constants, of.root_factor, own, c, g.As<float>() + at, stop - at, p.As<float>() + at,
             m.As<float>() + at, v.As<float>() + at);
    });
  });
}

}  // namespace fsdp
