#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// fp32, bf16 or fp16: all operands have y's dtype.
void AddCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y);
void ScaleCpu(ThreadPool& pool, float factor, const View& y);
// bits: the low ones of each element of 2 or 4 bytes.
void FillCpu(ThreadPool& pool, uint32_t bits, const View& y);
void CopyCpu(ThreadPool& pool, const ConstView& x, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
