#include "trainer/ops/cpu/adamw_cpu.h"

#include "trainer/ops/cpu/update_cpu.h"

namespace fsdp {

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

}  // namespace fsdp
