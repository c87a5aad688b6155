#include "trainer/ops/cpu/sgd_cpu.h"

#include "trainer/ops/cpu/update_cpu.h"

namespace fsdp {
namespace {

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

void SgdCpu(ThreadPool& pool, float momentum, const UpdateOperands& operands) {
  UpdateShard(pool, operands, [&](const ElementRule& rule, const UpdateFactors& factors) {
    return [momentum, own = FactorsOf(rule, factors)](float c, const float* g, int64_t n, float* p,
                                                      float* const(&states)[2]) {
      if (states[0] == nullptr) {
        Update(own, c, g, n, p);
      } else {
        UpdateWithMomentum(own, momentum, c, g, n, p, states[0]);
      }
    };
  });
}

}  // namespace fsdp
