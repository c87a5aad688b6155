#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct LoraShape {
  int64_t rows, in, out, rank;
  int64_t cols;  // Of y: its row's stride. y and dy point at the adapter's first column.
};

void LoraForwardCpu(ThreadPool& pool, const LoraShape& shape, const float* x, const float* a,
                    const float* b, float scale, float* u, float* y);
// da and db may be null. v: [rows, rank].
void LoraBackwardCpu(ThreadPool& pool, const LoraShape& shape, const float* x, const float* u,
                     const float* a, const float* b, float scale, const float* dy, float* dx,
                     float* da, float* db, float* v);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_LORA_CPU_H_
