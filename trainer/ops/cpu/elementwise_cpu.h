#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_

#include <cstddef>
#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void AddCpu(ThreadPool& pool, const float* a, const float* b, int64_t n, float* y);
void FillCpu(ThreadPool& pool, uint32_t bits, int64_t n, uint32_t* y);
void FillCpu(ThreadPool& pool, uint16_t bits, int64_t n, uint16_t* y);
void CopyCpu(ThreadPool& pool, const std::byte* x, int64_t bytes, std::byte* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
