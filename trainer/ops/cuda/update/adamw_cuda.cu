#include "trainer/ops/cuda/update/adamw_rule.h"
#include "trainer/ops/cuda/update/update_shard.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {

void AdamWCuda(CudaStreamHandle stream, const AdamWConstants& constants,
               const UpdateOperands& operands) {
  UpdateShardCuda<AdamWRule>(stream, operands, constants);
}

}  // namespace fsdp
