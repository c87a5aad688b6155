#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/runtime/kernel.h"

namespace fsdp {

struct HeadLossShape {
  int64_t rows, cols, vocab;
  int64_t chunk;    // Rows.
  int64_t dw_sums;  // Where dw adds up over chunks in the workspace, in bytes; 0: in dw itself.
};

// Without dx: the loss alone. `workspace`: of a chunk's rows the loss in float64, the largest logit
// and a factor, then their logits; then dw's sums, if they are there.
void HeadLossCpu(ThreadPool& pool, const HeadLossShape& shape, const ConstView& x,
                 const ConstView& w, const ConstView& targets, const ConstView& weights,
                 float scale, const std::optional<ConstView>& loss_scale, const View& loss,
                 const std::optional<View>& dx, const std::optional<View>& dw,
                 const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
