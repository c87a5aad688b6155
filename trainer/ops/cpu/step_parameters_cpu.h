#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_STEP_PARAMETERS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_STEP_PARAMETERS_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void UnpackStepInputsCpu(ThreadPool& pool, const ConstView& inputs, const View& mean_scale,
                         const View& stop, const View& save);
void DeriveUpdateFactorsCpu(ThreadPool& pool, double beta1, double beta2, const ConstView& inputs,
                            const ConstView& coefficient, const View& state, const View& factors);
void SetUpdatesCpu(ThreadPool& pool, int64_t updates, const View& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_STEP_PARAMETERS_CPU_H_
