#include "trainer/ops/sgd.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/sgd_cpu.h"

namespace fsdp {

void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b) {
  constexpr const char* kOp = "sgd";
  const Arguments args(kOp);
  args.CheckRank("p", p, DType::kFloat32, 1);
  const int64_t n = p.NumElements();
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.Check("g", g, DType::kFloat32, {n});
  args.CheckDisjoint("p", p, "g", g);
  args.Require(options.momentum >= 0 && options.momentum < 1, "momentum, want in [0, 1)");
  const bool has_buffer = options.momentum > 0;
  if (has_buffer) {
    args.Check("b", b, DType::kFloat32, {n});
    args.CheckDisjoint("b", b, "p", p);
    args.CheckDisjoint("b", b, "g", g);
  } else {
    args.Require(b.data == nullptr, "b is given, want View() without momentum");
  }
  CheckRuleTable(args, rules);
  args.Check("factors", factors, DType::kUInt8, BlockShape<UpdateFactors>());
  Operation operation{kOp, {rules, factors, coefficient, g}, {p}, {}};
  const int64_t parameters = rules.bytes() + factors.bytes() + coefficient.bytes();
  Cost cost{.flops = 5.0 * n,
            .bytes_read = static_cast<double>(parameters + g.bytes() + p.bytes()),
            .bytes_written = static_cast<double>(p.bytes())};
  if (has_buffer) {
    const double bytes = static_cast<double>(b.bytes());
    operation.writes.push_back(b);
    cost += {.flops = 2.0 * n, .bytes_read = bytes, .bytes_written = bytes};
  }
  operation.costs = {cost};
  const float momentum = static_cast<float>(options.momentum);
  operation.kernels.cpu = OnCpu(SgdCpu, momentum, rules, factors, coefficient, g, p, b);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
