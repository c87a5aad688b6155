#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void AttentionForwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                         const View& out, const View& lse, const View& workspace);
void AttentionBackwardCpu(ThreadPool& pool, const AttentionDims& dims, const AttentionInputs& in,
                          const ConstView& out, const ConstView& lse, const ConstView& dout,
                          const AttentionGradients& gradients, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_CPU_H_
