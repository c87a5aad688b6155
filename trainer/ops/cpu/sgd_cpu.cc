#include "trainer/ops/cpu/sgd_cpu.h"

#include <cmath>

#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;

struct RuleFactors {
  float lr;  // s lr.
  float weight_decay;
};

RuleFactors FactorsOf(const ElementRule& rule, const UpdateFactors& of) {
  return {.lr = static_cast<float>(rule.lr_scale * of.lr),
          .weight_decay = static_cast<float>(rule.weight_decay)};
}

void Update(const RuleFactors& f, float c, const float* g, int64_t n, float* __restrict p) {
  for (int64_t i = 0; i < n; ++i) p[i] -= f.lr * (c * g[i] + f.weight_decay * p[i]);
}

void UpdateWithMomentum(const RuleFactors& f, float momentum, float c, const float* g, int64_t n,
                        float* __restrict p, float* __restrict b) {
  for (int64_t i = 0; i < n; ++i) {
    const float bi = momentum * b[i] + (c * g[i] + f.weight_decay * p[i]);
    b[i] = bi;
    p[i] -= f.lr * bi;
  }
}

}  // namespace

void SgdCpu(ThreadPool& pool, float momentum, const ConstView& rules, const ConstView& factors,
            const ConstView& coefficient, const ConstView& g, const View& p, const View& b) {
  const float c = *coefficient.As<float>();
  if (!std::isfinite(c)) return;
  const UpdateFactors& of = *factors.As<UpdateFactors>();
  const std::span<const ElementRule> table = RulesIn(rules);
  pool.ParallelFor(p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(table, begin, end, [&](int64_t at, int64_t stop, int rule) {
      const RuleFactors own = FactorsOf(rule < 0 ? ElementRule() : table[rule], of);
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
