#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/element_rules.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct AdamWFactors {
  float beta1_new;  // 1 - beta1.
  float beta2_old, beta2_new;
  float root_factor;  // 1 / sqrt(1 - beta2^t).
  float eps;
};

struct AdamWRuleFactors {
  float keep;       // 1 - s lr wd.
  float step_size;  // s lr / (1 - beta1^t).
};

// `by_rule`: parallel to `rules`, and one more for the elements without a rule.
void AdamWCpu(ThreadPool& pool, const AdamWFactors& factors, const std::vector<ElementRule>& rules,
              const std::vector<AdamWRuleFactors>& by_rule, const ConstView& coefficient,
              const ConstView& g, const View& p, const View& m, const View& v);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_
