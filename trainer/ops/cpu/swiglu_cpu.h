#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SwigluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y);
void SwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx);

void GatedGeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y);
void GatedGeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy,
                          const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_
