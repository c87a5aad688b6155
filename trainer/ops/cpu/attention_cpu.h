#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_

#include <cstdint>

#include "trainer/ops/attention.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                         const View& out, const View& lse);
void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                          const ConstView& out, const ConstView& lse, const ConstView& dout,
                          const AttentionGradients& gradients);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
