#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_CAST_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_CAST_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void CastCpu(ThreadPool& pool, const ConstView& x, const View& y);  // The dtypes differ.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_CAST_CPU_H_
