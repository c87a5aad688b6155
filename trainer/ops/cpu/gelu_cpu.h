#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void GeluForwardCpu(ThreadPool& pool, const float* x, int64_t n, float* y);
void GeluBackwardCpu(ThreadPool& pool, const float* x, const float* dy, int64_t n, float* dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GELU_CPU_H_
