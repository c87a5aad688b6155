#include "trainer/ops/cpu/sgd_cpu.h"

#include "trainer/ops/cpu/update_cpu.h"

namespace fsdp {

void SgdCpu(ThreadPool& pool, float momentum, const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::sgd,
              [&](float c, const ElementRule& rule, const UpdateFactors& factors) -> SgdFactors {
                return {.c = c,
                        .momentum = momentum,
                        .lr = static_cast<float>(rule.lr_scale * factors.lr),
                        .weight_decay = static_cast<float>(rule.weight_decay)};
              });
}

}  // namespace fsdp
