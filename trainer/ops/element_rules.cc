#include "trainer/ops/element_rules.h"

#include <string>

namespace fsdp {

void CheckRules(const Arguments& args, const std::vector<ElementRule>& rules, int64_t n) {
  int64_t last = 0;
  for (const ElementRule& rule : rules) {
    if (rule.begin < last || rule.end < rule.begin || rule.end > n) {
      args.Fail("rule for [" + std::to_string(rule.begin) + ", " + std::to_string(rule.end) +
                ") is not in order inside [" + std::to_string(last) + ", " + std::to_string(n) +
                ")");
    }
    args.Require(rule.weight_decay >= 0 && rule.lr_scale >= 0,
                 "weight_decay and lr_scale of a rule, want >= 0");
    last = rule.end;
  }
}

}  // namespace fsdp
