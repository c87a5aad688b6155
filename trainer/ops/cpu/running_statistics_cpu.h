#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_RUNNING_STATISTICS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_RUNNING_STATISTICS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void CountBatchCpu(ThreadPool& pool, const View& count);
void TakeUnlessNaNCpu(ThreadPool& pool, const ConstView& coefficient, float divisor,
                      const ConstView& from, const View& to);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_RUNNING_STATISTICS_CPU_H_
