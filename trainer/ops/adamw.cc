#include "trainer/ops/adamw.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/adamw_cpu.h"
#include "trainer/ops/cuda/adamw_cuda.h"

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
