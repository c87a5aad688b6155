// An entry of a quantised layout's table in device memory: see quantized_layout.h.
// Tests: tests/trainer/ops/quantized_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_

#include <cstdint>

#include "trainer/ops/quantized_form.h"

namespace fsdp {

// Kernels work in units of this many element positions, whatever the block: blocks divide it.
inline constexpr int kQuantizedUnit = 256;

// Bounds of scales: see quantize.h.
template <QuantizedForm form>
inline constexpr float kLevels = form == QuantizedForm::kInt8  ? 127
                                 : form == QuantizedForm::kFp8 ? 448
                                                               : 7;
inline constexpr float kLeastScale = 0x1p-94f;
template <QuantizedForm form>  // The product with the levels is finite.
inline constexpr float kMostScale = form == QuantizedForm::kInt8 ? 0x1.020406p121f : 0x1p127f;

// The alignment of the parts of a packed buffer: a row's codes or raw elements, and its scales.
inline constexpr int64_t kQuantizedAlignment = 32;

// A stretch of elements. Its slots are element positions, counted from the begin of the block that
// holds its first element. So the first slots and the last may hold no element.
struct QuantizedRow {
  enum class Kind : int64_t { kQuantized, kRaw, kGap };

  Kind kind = Kind::kGap;
  int64_t unit = 0;     // The index of its first unit among the units of all rows, in order.
  int64_t element = 0;  // The element in slot 0: below 0 where slot 0 holds none.
  int64_t first = 0, last = 0;                // Slots [first, last) hold elements.
  int64_t stored_first = 0, stored_last = 0;  // Packed slots; those without an element hold 0.
  int64_t data = 0;                           // The byte where stored_first is packed.
  int64_t scales = 0;                         // The byte of the first block's scale.
  int64_t blocks = 0;  // Scales without padding; zeros follow them up to the alignment.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_
