#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void LayerNormForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& w,
                         const ConstView& b, float eps, const View& y, const View& mean,
                         const View& rstd);

// `workspace`: [blocks, 2, cols], the sums for dw and db of each block of rows.
void LayerNormBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& w,
                          const ConstView& mean, const ConstView& rstd, const ConstView& dy,
                          int64_t blocks, bool add, const View& dx, const std::optional<View>& dw,
                          const std::optional<View>& db, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_
