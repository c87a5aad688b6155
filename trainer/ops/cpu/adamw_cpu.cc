#include "trainer/ops/cpu/adamw_cpu.h"

#include <cmath>

#include "trainer/ops/cpu/update_cpu.h"

namespace fsdp {
namespace {

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

void AdamWCpu(ThreadPool& pool, const AdamWConstants& constants, const UpdateOperands& operands) {
  UpdateShard(pool, operands, [&](const ElementRule& rule, const UpdateFactors& factors) {
    const RuleFactors own = FactorsOf(rule, factors);
    return [&constants, own, root_factor = factors.root_factor](
               float c, const float* g, int64_t n, float* p, float* const(&states)[2]) {
      Update(constants, root_factor, own, c, g, n, p, states[0], states[1]);
    };
  });
}

}  // namespace fsdp
