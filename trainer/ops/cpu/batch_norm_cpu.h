#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_BATCH_NORM_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_BATCH_NORM_CPU_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/batch_norm_shape.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void BatchMomentsCpu(ThreadPool& pool, const BatchNormShape& shape, const ConstView& x,
                     const ConstView& weights, const View& part, const View& workspace);
void JoinMomentsCpu(ThreadPool& pool, const ConstView& parts, float eps, const View& statistics,
                    float momentum, const std::optional<View>& mean,
                    const std::optional<View>& variance);
void UseRunningMomentsCpu(ThreadPool& pool, const ConstView& mean, const ConstView& variance,
                          float eps, const View& statistics);
void BatchNormForwardCpu(ThreadPool& pool, const BatchNormShape& shape, const ConstView& x,
                         const ConstView& statistics, const ConstView& w, const ConstView& b,
                         bool relu, const View& y);
void BatchNormSumsCpu(ThreadPool& pool, const BatchNormShape& shape, const ConstView& x,
                      const ConstView& statistics, const ConstView& w, const ConstView& b,
                      bool relu, const ConstView& dy, const std::optional<View>& dw,
                      const std::optional<View>& db, const View& sums, const View& workspace);
void BatchNormBackwardCpu(ThreadPool& pool, const BatchNormShape& shape, const ConstView& x,
                          const ConstView& weights, const ConstView& statistics, const ConstView& w,
                          const ConstView& b, bool relu, const ConstView& sums, const ConstView& dy,
                          const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_BATCH_NORM_CPU_H_
