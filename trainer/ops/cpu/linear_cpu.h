#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_

#include <cstdint>

#include "trainer/ops/linear.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct LinearShape {
  int64_t rows, in, out;
  WeightLayout layout;
};

// Null pointers: left out.
void LinearForwardCpu(ThreadPool& pool, const LinearShape& shape, const float* x, const float* w,
                      const float* b, float* u, float* y);
void LinearBackwardCpu(ThreadPool& pool, const LinearShape& shape, const float* u, const float* x,
                       const float* w, const float* dy, float* dx, float* dw, float* db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LINEAR_CPU_H_
