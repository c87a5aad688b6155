#include "trainer/ops/element_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/core/view.h"
#include "trainer/ops/update_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void WriteRulesCpu(ThreadPool&, const std::vector<ElementRule>& rules, const View& table) {
  std::ranges::copy(rules, table.As<ElementRule>());
}

}  // namespace

uint64_t TensorKey(std::string_view name) { return HashBytes(name); }

Shape RuleTableShape(size_t rules) { return {static_cast<int64_t>(rules * sizeof(ElementRule))}; }

void WriteRules(Stream& stream, const std::vector<ElementRule>& rules, int64_t n, View table) {
  constexpr const char* kOp = "write_rules";
  const Arguments args(kOp);
  args.Check("table", table, DType::kUInt8, RuleTableShape(rules.size()));
  int64_t last = 0;
  for (const ElementRule& rule : rules) {
    if (rule.begin < last || rule.end < rule.begin || rule.end > n) {
      args.Fail("rule for [" + std::to_string(rule.begin) + ", " + std::to_string(rule.end) +
                ") is not in order inside [" + std::to_string(last) + ", " + std::to_string(n) +
                ")");
    }
    args.Require(rule.weight_decay >= 0 && rule.lr_scale >= 0,
                 "weight_decay and lr_scale of a rule, want >= 0");
    args.Require(rule.element >= 0, "element of a rule, want >= 0");
    last = rule.end;
  }
  const Cost cost{.bytes_written = static_cast<double>(table.bytes())};
  const auto count = static_cast<int64_t>(rules.size());
  const OnGpu gpu{.launches = (count + kRulesOfLaunch - 1) / kRulesOfLaunch};
  DeviceKernels kernels{.cpu = OnCpu(WriteRulesCpu, rules, table),
                        .cuda = OnCuda(WriteRulesCuda, rules, table)};
  stream.Enqueue({kOp, {}, {table}, {{cost, gpu}}, std::move(kernels)});
}

void CheckRuleTable(const Arguments& args, const ConstView& table) {
  args.Require(table.dtype == DType::kUInt8 && table.bytes() % sizeof(ElementRule) == 0,
               "rules, want a table of WriteRules()");
  args.CheckElements("rules", table, DType::kUInt8, table.bytes());
}

}  // namespace fsdp
