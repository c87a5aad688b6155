#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/reductions.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const View& out);
void UnscaledSumOfSquaresCpu(ThreadPool& pool, const ConstView& x, const ConstView& scale,
                             const View& out, const View& found);
void ClipCoefficientCpu(ThreadPool& pool, const ConstView& loss, const ConstView& sum_of_squares,
                        const ConstView& mean_scale, const std::optional<LossScaling>& scaling,
                        float max_norm, const View& norm, const View& coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
