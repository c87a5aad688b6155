#ifndef FSDP_TRAIN_TRAINER_OPS_ATTENTION_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_ATTENTION_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct AttentionDims {
  int64_t batch, seq, heads, head_dim;
};

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const float* qkv, float* out,
                         float* lse);
void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const float* qkv,
                          const float* out, const float* lse, const float* dout, float* dqkv);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ATTENTION_CPU_H_
