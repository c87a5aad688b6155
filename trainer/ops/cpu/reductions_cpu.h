#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void SumOfSquaresCpu(ThreadPool& pool, const float* x, int64_t n, float* out);
void ClipCoefficientCpu(float sum_of_squares, float mean_scale, float max_norm, float* norm,
                        float* coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_REDUCTIONS_CPU_H_
