#include "trainer/ops/adamw.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/adamw_cpu.h"

namespace fsdp {
namespace {

AdamWConstants Constants(const AdamWOptions& o) {
  return {.beta1_new = static_cast<float>(1 - o.beta1),
          .beta2_old = static_cast<float>(o.beta2),
          .beta2_new = static_cast<float>(1 - o.beta2),
          .eps = static_cast<float>(o.eps)};
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
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
  args.Require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
               "beta1 and beta2, want in [0, 1)");
  const AdamWConstants constants = Constants(options);
  args.Require(constants.eps >= kMinAdamWEps, "eps, want >= kMinAdamWEps");
  CheckRuleTable(args, rules);
  args.Check("factors", factors, DType::kUInt8, BlockShape<UpdateFactors>());
  const int64_t parameters = rules.bytes() + factors.bytes() + coefficient.bytes();
  const Cost cost{
      .flops = 16.0 * n,
      .bytes_read = static_cast<double>(parameters + g.bytes() + p.bytes() + m.bytes() + v.bytes()),
      .bytes_written = static_cast<double>(p.bytes() + m.bytes() + v.bytes())};
  CpuKernel cpu = OnCpu(AdamWCpu, constants, rules, factors, coefficient, g, p, m, v);
  stream.Enqueue({kOp, {rules, factors, coefficient, g}, {p, m, v}, {cost}, {std::move(cpu)}});
}

}  // namespace fsdp
