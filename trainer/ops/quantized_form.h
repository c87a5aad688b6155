// The form of quantised elements: see quantize.h.
// Tests: tests/trainer/ops/quantized_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZED_FORM_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZED_FORM_H_

#include <cstdint>

namespace fsdp {

enum class QuantizedForm : uint8_t { kInt8, kFp8, kInt4 };  // kFp8: e4m3.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZED_FORM_H_
