#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/runtime/kernel.h"

namespace fsdp {

struct HeadLossShape {
  int64_t rows, cols, vocab;
  int64_t chunk;  // Rows.
};

// Without dx: the loss alone. `workspace`: of a chunk's rows the loss in float64, the largest logit
// and a factor, then their logits.
void HeadLossCpu(ThreadPool& pool, const HeadLossShape& shape, const ConstView& x,
                 const ConstView& w, const ConstView& targets, const ConstView& weights,
                 float scale, const View& loss, const std::optional<View>& dx,
                 const std::optional<View>& dw, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
