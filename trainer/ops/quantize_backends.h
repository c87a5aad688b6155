// Kernels of quantization: quantize.h, quantized_layout.h, weight_codes.h.
// Tests: tests/trainer/ops/quantize_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZE_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZE_BACKENDS_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/ops/quantized_row.h"
#include "trainer/ops/weight_code.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// quantize.h
[[gnu::weak]] void QuantizeCuda(CudaStreamHandle stream, const ConstView& x,
                                const QuantizedTable& table, const View& packed);
[[gnu::weak]] void DequantizeCuda(CudaStreamHandle stream, const ConstView& packed,
                                  const QuantizedTable& table, const View& y);
[[gnu::weak]] void DequantizeSumCuda(CudaStreamHandle stream, const ConstView& packed,
                                     const QuantizedTable& table, const View& y);

// quantized_layout.h
// The most rows of one launch, which are among its arguments.
inline constexpr int kQuantizedRowsOfLaunch = 48;

[[gnu::weak]] void WriteQuantizedRowsCuda(CudaStreamHandle stream,
                                          const std::vector<QuantizedRow>& rows, const View& table);

// weight_codes.h
[[gnu::weak]] void DecodeWeightCuda(CudaStreamHandle stream, const ConstView& records,
                                    WeightCode code, const View& w);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZE_BACKENDS_H_
