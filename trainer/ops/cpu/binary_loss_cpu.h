#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_BINARY_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_BINARY_LOSS_CPU_H_

#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void BinaryLossCpu(ThreadPool& pool, const LogitLoss& loss);
void SumOfTargetsCpu(ThreadPool& pool, const ConstView& targets, const ConstView& weights,
                     const View& sum, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_BINARY_LOSS_CPU_H_
