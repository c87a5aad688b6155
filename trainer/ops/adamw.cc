#include "trainer/ops/adamw.h"

#include <utility>

#include "trainer/ops/adamw_constants.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/update_cpu.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

void AdamWCpu(ThreadPool& pool, const AdamWConstants& constants, const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::adamw,
              [&](float c, const ElementRule& rule, const UpdateFactors& factors) -> AdamWFactors {
                const double lr = rule.lr_scale * factors.lr;
                return {.c = c,
                        .beta1_new = constants.beta1_new,
                        .beta2_old = constants.beta2_old,
                        .beta2_new = constants.beta2_new,
                        .eps = constants.eps,
                        .root_factor = factors.root_factor,
                        .keep = static_cast<float>(1 - lr * rule.weight_decay),
                        .step_size = static_cast<float>(lr / factors.correction1)};
              });
}

AdamWConstants Constants(const AdamWOptions& o) {
  return {.beta1_new = static_cast<float>(1 - o.beta1),
          .beta2_old = static_cast<float>(o.beta2),
          .beta2_new = static_cast<float>(1 - o.beta2),
          .eps = static_cast<float>(o.eps)};
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
           ConstView coefficient, ConstView g, View p, View m, View v, const UpdateExtras& extras) {
  constexpr const char* kOp = "adamw";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors, coefficient, g, p, {m, v}, extras};
  CheckUpdate(args, operands, {"m", "v"});
  args.Require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
               "beta1 and beta2, want in [0, 1)");
  const AdamWConstants constants = Constants(options);
  args.Require(constants.eps >= kMinAdamWEps, "eps, want >= kMinAdamWEps");
  Operation operation = UpdateOperation(kOp, operands, 16);
  operation.kernels.cpu = OnCpu(AdamWCpu, constants, operands);
  operation.kernels.cuda = OnCuda(AdamWCuda, constants, operands);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
