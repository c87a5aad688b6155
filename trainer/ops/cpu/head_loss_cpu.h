#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct HeadLossShape {
  int64_t rows, cols, vocab;
  int64_t chunk;    // Rows.
  int64_t dw_sums;  // Bytes of dw's sums over chunks in the workspace; 0: dw itself holds them.
};

// Without dx: the loss alone. `workspace`: for the rows of a chunk the loss in float64, the largest
// logit and a factor; then the rows' logits; then dw's sums, if it holds them.
void HeadLossCpu(ThreadPool& pool, const HeadLossShape& shape, const ConstView& x,
                 const ConstView& w, const ConstView& targets, const ConstView& weights,
                 float scale, const std::optional<ConstView>& loss_scale, const View& loss,
                 const std::optional<View>& dx, const std::optional<View>& dw,
                 const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
