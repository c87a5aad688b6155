#include "trainer/ops/cpu/element_rules_cpu.h"

#include <algorithm>

namespace fsdp {

void WriteRulesCpu(ThreadPool&, const std::vector<ElementRule>& rules, const View& table) {
  std::ranges::copy(rules, table.As<ElementRule>());
}

}  // namespace fsdp
