#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// An element is kept where its word is at least `threshold`.
void DropoutCpu(ThreadPool& pool, const ConstView& x, const ConstView& keys, uint32_t site,
                uint32_t threshold, float scale, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_
