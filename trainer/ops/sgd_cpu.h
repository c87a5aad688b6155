#ifndef FSDP_TRAIN_TRAINER_OPS_SGD_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_SGD_CPU_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/element_ranges.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct SgdFactors {
  float lr, momentum, weight_decay;
};

// `b` is null when there is no momentum.
void SgdCpu(ThreadPool& pool, const SgdFactors& factors,
            const std::vector<ElementRange>& decay_ranges, const float* coefficient, const float* g,
            int64_t n, float* p, float* b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_SGD_CPU_H_
