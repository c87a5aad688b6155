#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZED_LAYOUT_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZED_LAYOUT_CUDA_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/quantized_row.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The most rows of one launch, which are among its arguments.
inline constexpr int kQuantizedRowsOfLaunch = 48;

[[gnu::weak]] void WriteQuantizedRowsCuda(CudaStreamHandle stream,
                                          const std::vector<QuantizedRow>& rows, const View& table);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZED_LAYOUT_CUDA_H_
