#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_CPU_H_

#include "trainer/core/view.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void QuantizeCpu(ThreadPool& pool, const ConstView& x, const QuantizedTable& table,
                 const View& packed);
void DequantizeCpu(ThreadPool& pool, const ConstView& packed, const QuantizedTable& table,
                   const View& y);
void DequantizeSumCpu(ThreadPool& pool, const ConstView& packed, const QuantizedTable& table,
                      const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_CPU_H_
