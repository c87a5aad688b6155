#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_

#include "trainer/ops/update.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SgdCpu(ThreadPool& pool, float momentum, const UpdateOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
