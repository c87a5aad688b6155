#include "trainer/ops/ema.h"

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/ema_cpu.h"

namespace fsdp {

void Ema(Stream& stream, double decay, ConstView coefficient, ConstView p, View e) {
  constexpr const char* kOp = "ema";
  const Arguments args(kOp);
  args.CheckRank("e", e, DType::kFloat32, 1);
  const int64_t n = e.NumElements();
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.Check("p", p, DType::kFloat32, {n});
  args.CheckDisjoint("e", e, "p", p);
  args.Require(decay >= 0 && decay < 1, "decay, want in [0, 1)");
  const Cost cost{.flops = 3.0 * n,
                  .bytes_read = static_cast<double>(coefficient.bytes() + p.bytes() + e.bytes()),
                  .bytes_written = static_cast<double>(e.bytes())};
  const auto rate = static_cast<float>(1 - decay);
  stream.Enqueue({kOp, {coefficient, p}, {e}, {cost}, {OnCpu(EmaCpu, rate, coefficient, p, e)}});
}

}  // namespace fsdp
