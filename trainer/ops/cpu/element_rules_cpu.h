#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENT_RULES_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENT_RULES_CPU_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/element_rule.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void WriteRulesCpu(ThreadPool& pool, const std::vector<ElementRule>& rules, const View& table);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENT_RULES_CPU_H_
