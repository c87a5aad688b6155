#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/element_rules.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct SgdRuleFactors {
  float lr;  // s lr.
  float weight_decay;
};

// `by_rule`: parallel to `rules`, and one more for the elements without a rule. b: null without
// momentum.
void SgdCpu(ThreadPool& pool, float momentum, const std::vector<ElementRule>& rules,
            const std::vector<SgdRuleFactors>& by_rule, const float* coefficient, const float* g,
            int64_t n, float* p, float* b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
