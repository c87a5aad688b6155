#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZE_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZE_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void QuantizeCuda(CudaStreamHandle stream, const ConstView& x,
                                const QuantizedTable& table, const View& packed);
[[gnu::weak]] void DequantizeCuda(CudaStreamHandle stream, const ConstView& packed,
                                  const QuantizedTable& table, const View& y);
[[gnu::weak]] void DequantizeSumCuda(CudaStreamHandle stream, const ConstView& packed,
                                     const QuantizedTable& table, const View& y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_QUANTIZE_CUDA_H_
