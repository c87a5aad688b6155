#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/element_rules.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct SgdRuleFactors {
  float lr;  // s lr.
  float weight_decay;
};

// `by_rule`: parallel to `rules`, and one more for the elements without a rule. b: View() without
// momentum.
void SgdCpu(ThreadPool& pool, float momentum, const std::vector<ElementRule>& rules,
            const std::vector<SgdRuleFactors>& by_rule, const ConstView& coefficient,
            const ConstView& g, const View& p, const View& b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
