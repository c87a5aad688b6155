#include "trainer/ops/sgd.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/update_cpu.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

void SgdCpu(ThreadPool& pool, float momentum, const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::sgd,
              [&](float c, const ElementRule& rule, const UpdateFactors& factors) -> SgdFactors {
                return {.c = c,
                        .momentum = momentum,
                        .lr = static_cast<float>(rule.lr_scale * factors.lr),
                        .weight_decay = static_cast<float>(rule.weight_decay)};
              });
}

}  // namespace

void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b, const UpdateExtras& extras) {
  constexpr const char* kOp = "sgd";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors, coefficient, g, p, {b, View()}, extras};
  args.Require(options.momentum >= 0 && options.momentum < 1, "momentum, want in [0, 1)");
  const bool has_buffer = options.momentum > 0;
  args.Require(has_buffer || b.data == nullptr, "b is given, want View() without momentum");
  if (has_buffer) {
    CheckUpdate(args, operands, {"b"});
  } else {
    CheckUpdate(args, operands, {});
  }
  Operation operation = UpdateOperation(kOp, operands, has_buffer ? 7 : 5);
  const auto momentum = static_cast<float>(options.momentum);
  operation.kernels.cpu = OnCpu(SgdCpu, momentum, operands);
  operation.kernels.cuda = OnCuda(SgdCuda, momentum, operands);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
