#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SwigluForwardCpu(ThreadPool& pool, const float* x, int64_t rows, int64_t inner, float* y);
void SwigluBackwardCpu(ThreadPool& pool, const float* x, const float* dy, int64_t rows,
                       int64_t inner, float* dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_SWIGLU_CPU_H_
