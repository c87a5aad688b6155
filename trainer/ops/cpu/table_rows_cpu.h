#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_TABLE_ROWS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_TABLE_ROWS_CPU_H_

#include "trainer/core/view.h"
#include "trainer/ops/row_order.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void TakeRowsCpu(ThreadPool& pool, const ConstView& from, const ConstView& places, const View& to);
void PutRowsCpu(ThreadPool& pool, const ConstView& from, const ConstView& places, const View& to);
void PlacesOfRoundCpu(ThreadPool& pool, const ExchangeRound& round, const ConstView& rows,
                      const ConstView& owners, const View& places, const View& ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_TABLE_ROWS_CPU_H_
