#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Kept where the word is at least `threshold`.
void DropoutCpu(ThreadPool& pool, const float* x, const int32_t* keys, uint32_t site,
                uint32_t threshold, float scale, int64_t batch, int64_t size, float* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_DROPOUT_CPU_H_
