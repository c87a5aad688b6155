#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// b: null without momentum.
void SgdCpu(ThreadPool& pool, float momentum, const ConstView& rules, const ConstView& factors,
            const ConstView& coefficient, const ConstView& g, const View& p, const View& b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SGD_CPU_H_
