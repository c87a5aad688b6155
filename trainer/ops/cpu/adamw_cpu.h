#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_

#include "trainer/ops/adamw_constants.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void AdamWCpu(ThreadPool& pool, const AdamWConstants& constants, const UpdateOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ADAMW_CPU_H_
