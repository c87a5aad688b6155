#include "trainer/ops/adamw.h"

#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/adamw_cpu.h"

namespace fsdp {
namespace {

AdamWFactors Factors(const AdamWOptions& o) {
  const double t = static_cast<double>(o.step);
  return {.beta1_new = static_cast<float>(1 - o.beta1),
          .beta2_old = static_cast<float>(o.beta2),
          .beta2_new = static_cast<float>(1 - o.beta2),
          .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
          .eps = static_cast<float>(o.eps)};
}

AdamWRuleFactors FactorsOf(const ElementRule& rule, const AdamWOptions& o) {
  const double lr = rule.lr_scale * o.lr;
  return {
      .keep = static_cast<float>(1 - lr * rule.weight_decay),
      .step_size = static_cast<float>(lr / (1 - std::pow(o.beta1, static_cast<double>(o.step))))};
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& options, const std::vector<ElementRule>& rules,
           ConstView coefficient, ConstView g, View p, View m, View v) {
  constexpr const char* kOp = "adamw";
  const Arguments args(kOp);
  args.CheckRank("p", p, DType::kFloat32, 1);
  const int64_t n = p.NumElements();
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.Check("g", g, DType::kFloat32, {n});
  args.Check("m", m, DType::kFloat32, {n});
  args.Check("v", v, DType::kFloat32, {n});
  args.CheckDisjoint("p", p, "g", g);
  args.CheckDisjoint("p", p, "m", m);
  args.CheckDisjoint("p", p, "v", v);
  args.CheckDisjoint("m", m, "g", g);
  args.CheckDisjoint("m", m, "v", v);
  args.CheckDisjoint("v", v, "g", g);
  args.Require(options.lr >= 0, "lr, want >= 0");
  args.Require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
               "beta1 and beta2, want in [0, 1)");
  const AdamWFactors factors = Factors(options);
  args.Require(factors.eps >= kMinAdamWEps, "eps, want >= kMinAdamWEps");
  args.Require(options.step >= 1, "step, want >= 1");
  CheckRules(args, rules, n);
  std::vector<AdamWRuleFactors> by_rule;
  for (const ElementRule& rule : rules) by_rule.push_back(FactorsOf(rule, options));
  by_rule.push_back(FactorsOf({}, options));
  const Cost cost{.flops = 16.0 * n,
                  .bytes_read = static_cast<double>(coefficient.bytes() + g.bytes() + p.bytes() +
                                                    m.bytes() + v.bytes()),
                  .bytes_written = static_cast<double>(p.bytes() + m.bytes() + v.bytes())};
  CpuKernel cpu = OnCpu(AdamWCpu, factors, rules, by_rule, coefficient, g, p, m, v);
  stream.Enqueue({kOp, {coefficient, g}, {p, m, v}, {cost}, {std::move(cpu)}});
}

}  // namespace fsdp
