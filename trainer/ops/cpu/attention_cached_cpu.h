#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Floats of a group's scores: whole cache lines, so that no two threads write to one line.
inline int64_t ScoresOfAGroup(const AttentionCachedDims& dims) {
  return (dims.capacity + 15) / 16 * 16;
}

void AttentionCachedCpu(ThreadPool& pool, const AttentionCachedDims& dims,
                        const AttentionInputs& in, const View& cache_k, const View& cache_v,
                        const View& out, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_
