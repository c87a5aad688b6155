#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_FEATURE_VECTORS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_FEATURE_VECTORS_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void JoinColumnsCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y);
void SplitColumnsCpu(ThreadPool& pool, const ConstView& y, const View& a, const View& b);
void SwapVectorsCpu(ThreadPool& pool, const ConstView& x, int64_t samples, const View& y);
void PairDotsForwardCpu(ThreadPool& pool, const ConstView& x, float scale, const View& y);
void PairDotsBackwardCpu(ThreadPool& pool, const ConstView& x, float scale, const ConstView& dy,
                         const View& dx);
void MultiplyForwardCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y);
void MultiplyBackwardCpu(ThreadPool& pool, const ConstView& a, const ConstView& b,
                         const ConstView& dy, const View& da, const View& db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_FEATURE_VECTORS_CPU_H_
