#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void LayerNormForwardCpu(ThreadPool& pool, const float* x, const float* w, const float* b,
                         float eps, int64_t rows, int64_t cols, float* y, float* mean, float* rstd);

// `partial`: [blocks, 2, cols], the sums for dw and db of each block of rows. dw and db may be
// null.
void LayerNormBackwardCpu(ThreadPool& pool, const float* x, const float* w, const float* mean,
                          const float* rstd, const float* dy, int64_t rows, int64_t cols,
                          int64_t blocks, bool add, float* dx, float* dw, float* db,
                          float* partial);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LAYER_NORM_CPU_H_
