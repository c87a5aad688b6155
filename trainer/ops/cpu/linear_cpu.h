#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct LinearShape {
  int64_t rows, in, out;
  WeightLayout layout;
};

void LinearForwardCpu(ThreadPool& pool, const LinearShape& shape, const ConstView& x,
                      const ConstView& w, const std::optional<ConstView>& b,
                      const std::optional<ConstView>& residual, const std::optional<View>& u,
                      const View& y);
void LinearBackwardCpu(ThreadPool& pool, const LinearShape& shape,
                       const std::optional<ConstView>& u, const ConstView& x, const ConstView& w,
                       const ConstView& dy, const std::optional<View>& dx,
                       const std::optional<View>& dw, const std::optional<View>& db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_
