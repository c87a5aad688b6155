#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_

#include <cstdint>
#include <vector>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void RopeTableCpu(ThreadPool& pool, const std::vector<double>& frequencies, double factor,
                  int64_t positions, float* table);

struct RopeShape {
  int64_t tokens, heads, half;  // half: head_dim / 2.
  int64_t stride;               // Elements from token to token.
  int64_t table_rows;
};

void RopeCpu(ThreadPool& pool, const RopeShape& shape, const float* table, const int32_t* positions,
             bool backward, float* x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_
