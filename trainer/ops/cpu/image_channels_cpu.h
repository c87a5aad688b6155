#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_CHANNELS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_CHANNELS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void MeanPixelsForwardCpu(ThreadPool& pool, const ConstView& x, const View& y);
void MeanPixelsBackwardCpu(ThreadPool& pool, const ConstView& dy, const View& dx, bool adds);
void ScaleChannelsForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& f,
                             const View& y);
void ScaleChannelsBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& f,
                              const ConstView& dy, const View& dx, const View& df);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_CHANNELS_CPU_H_
