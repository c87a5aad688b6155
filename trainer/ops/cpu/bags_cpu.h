#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_BAGS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_BAGS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void PoolBagsCpu(ThreadPool& pool, const ConstView& vectors, const ConstView& places,
                 const ConstView& first, const View& out);
void PoolBagsBackwardCpu(ThreadPool& pool, const ConstView& d, const ConstView& places,
                         const ConstView& order, const ConstView& first, const View& sums);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_BAGS_CPU_H_
