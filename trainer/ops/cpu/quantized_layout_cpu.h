#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZED_LAYOUT_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZED_LAYOUT_CPU_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/quantized_row.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void WriteQuantizedRowsCpu(ThreadPool& pool, const std::vector<QuantizedRow>& rows,
                           const View& table);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZED_LAYOUT_CPU_H_
