#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct LoraShape {
  int64_t rows, in, out, rank;
  int64_t cols;    // Columns of y: the stride of its rows.
  int64_t column;  // The adapter's first column of y.
};

void LoraForwardCpu(ThreadPool& pool, const LoraShape& shape, const ConstView& x,
                    const ConstView& a, const ConstView& b, float scale, const View& u,
                    const View& y);
// `workspace`: v, [rows, rank].
void LoraBackwardCpu(ThreadPool& pool, const LoraShape& shape, const ConstView& x,
                     const ConstView& u, const ConstView& a, const ConstView& b, float scale,
                     const ConstView& dy, const View& dx, const std::optional<View>& da,
                     const std::optional<View>& db, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_
