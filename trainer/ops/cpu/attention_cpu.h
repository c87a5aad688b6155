#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_

#include <cstdint>

#include "trainer/ops/cpu/attention_kernels.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct AttentionDims {
  int64_t batch, seq, heads, kv_heads, head_dim;

  int64_t group() const { return heads / kv_heads; }
};

// Rows of head 0; those of head h begin head_dim h elements later.
struct AttentionData {
  HeadRows<const float> q, k, v;
  const int32_t* positions;
  const int32_t* keys = nullptr;  // Without: no dropout.
  ProbabilityDraws drop = {};     // Of sample 0's head 0, its key left out.
};

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionData& in,
                         float* out, float* lse);
void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionData& in,
                          const float* out, const float* lse, const float* dout, HeadRows<float> dq,
                          HeadRows<float> dk, HeadRows<float> dv);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
