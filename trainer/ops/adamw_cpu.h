#ifndef FSDP_TRAIN_TRAINER_OPS_ADAMW_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_ADAMW_CPU_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/element_ranges.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct AdamWFactors {
  float keep;       // 1 - lr wd.
  float beta1_new;  // 1 - beta1.
  float beta2_old, beta2_new;
  float step_size;    // lr / (1 - beta1^t).
  float root_factor;  // 1 / sqrt(1 - beta2^t).
  float eps;
};

void AdamWCpu(ThreadPool& pool, const AdamWFactors& factors,
              const std::vector<ElementRange>& decay_ranges, const float* coefficient,
              const float* g, int64_t n, float* p, float* m, float* v);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ADAMW_CPU_H_
