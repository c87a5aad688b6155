#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void EmaCpu(ThreadPool& pool, float rate, const float* coefficient, const float* p, int64_t n,
            float* e);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_EMA_CPU_H_
