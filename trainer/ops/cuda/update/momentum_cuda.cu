#include "trainer/ops/cuda/update/adamw_rule.h"
#include "trainer/ops/cuda/update/update_shard.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {

void MomentumCuda(CudaStreamHandle stream, const MomentumConstants& constants,
                  const UpdateOperands& operands) {
  UpdateShardCuda<MomentumRule>(stream, operands, constants);
}

}  // namespace fsdp
