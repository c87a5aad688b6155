#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void GeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y);
void GeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_
