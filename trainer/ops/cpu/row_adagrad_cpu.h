#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ROW_ADAGRAD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ROW_ADAGRAD_CPU_H_

#include "trainer/ops/row_adagrad_operands.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void RowAdagradCpu(ThreadPool& pool, const RowAdagradOptions& options,
                   const RowAdagradOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ROW_ADAGRAD_CPU_H_
