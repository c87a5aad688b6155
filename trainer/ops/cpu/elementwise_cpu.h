#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_

#include <cstddef>
#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Of float, BFloat16 and Float16.
template <typename T>
void AddCpu(ThreadPool& pool, const T* a, const T* b, int64_t n, T* y);
extern template void AddCpu(ThreadPool&, const float*, const float*, int64_t, float*);
extern template void AddCpu(ThreadPool&, const BFloat16*, const BFloat16*, int64_t, BFloat16*);
extern template void AddCpu(ThreadPool&, const Float16*, const Float16*, int64_t, Float16*);

void FillCpu(ThreadPool& pool, uint32_t bits, int64_t n, uint32_t* y);
void FillCpu(ThreadPool& pool, uint16_t bits, int64_t n, uint16_t* y);
void CopyCpu(ThreadPool& pool, const std::byte* x, int64_t bytes, std::byte* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ELEMENTWISE_CPU_H_
