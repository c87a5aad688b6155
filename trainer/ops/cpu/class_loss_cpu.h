#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_CLASS_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_CLASS_LOSS_CPU_H_

#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void ClassLossCpu(ThreadPool& pool, const LogitLoss& loss);
void CountCorrectClassesCpu(ThreadPool& pool, const LogitLoss& count);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_CLASS_LOSS_CPU_H_
