// Units of quantize.h: 256 floats and their codes, for each instruction set (isa.h).
// Tests: tests/trainer/ops/quantize_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_KERNELS_H_

#include <cstdint>

namespace fsdp {

// Indexed by QuantizedForm. x and y: 256 floats; scales: one for each `block` of them; codes: 256
// bytes, in kInt4 128.
struct QuantizeKernels {
  void (*quantize[3])(const float* x, int block, float* scales, uint8_t* codes);
  // y[i] = the value of code i.
  void (*dequantize[3])(const uint8_t* codes, const float* scales, int block, float* y);
  // y[i] += the value of code i, rounded before it is added.
  void (*add[3])(const uint8_t* codes, const float* scales, int block, float* y);
};

extern const QuantizeKernels kQuantizeAvx2, kQuantizeAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_QUANTIZE_KERNELS_H_
