#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void EmaCpu(ThreadPool& pool, float rate, const ConstView& coefficient, const ConstView& p,
            const View& e);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_
