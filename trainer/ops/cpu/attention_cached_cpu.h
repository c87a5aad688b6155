#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_

#include <cstdint>

#include "trainer/ops/attention.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct CachedShape {
  int64_t batch, n, heads, kv_heads, head_dim, capacity;
};

void AttentionCachedCpu(ThreadPool& pool, const CachedShape& shape, const AttentionInputs& in,
                        const View& cache_k, const View& cache_v, const View& out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CACHED_CPU_H_
