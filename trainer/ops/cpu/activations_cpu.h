#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATIONS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATIONS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/ops/activation.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void ActivationForwardCpu(ThreadPool& pool, Activation f, const ConstView& x, const View& y);
void ActivationBackwardCpu(ThreadPool& pool, Activation f, const ConstView& saved,
                           const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ACTIVATIONS_CPU_H_
