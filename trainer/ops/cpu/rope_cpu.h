#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/heads.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void RopeTableCpu(ThreadPool& pool, const std::vector<double>& frequencies, double factor,
                  const View& table);

struct RopeShape {
  int64_t tokens, heads, half;  // half: head_dim / 2.
  int64_t table_rows;
};

void RopeCpu(ThreadPool& pool, const RopeShape& shape, const ConstView& table,
             const ConstView& positions, bool backward, const Heads& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ROPE_CPU_H_
