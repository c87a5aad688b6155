#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const View& out);
void ClipCoefficientCpu(ThreadPool& pool, const ConstView& sum_of_squares,
                        const ConstView& mean_scale, float max_norm, const View& norm,
                        const View& coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
