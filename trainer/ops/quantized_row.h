// What the table of a quantised layout is made of, in device memory: see quantized_layout.h.
// Tests: tests/trainer/ops/quantized_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_

#include <cstdint>

#include "trainer/ops/quantized_form.h"

namespace fsdp {

// Whatever the block, kernels work in units of as many slots: blocks divide it.
inline constexpr int kQuantizedUnit = 256;

// Of scales: see quantize.h.
template <QuantizedForm form>
inline constexpr float kLevels = form == QuantizedForm::kInt8  ? 127
                                 : form == QuantizedForm::kFp8 ? 448
                                                               : 7;
inline constexpr float kLeastScale = 0x1p-94f;
template <QuantizedForm form>  // Levels times it is finite.
inline constexpr float kMostScale = form == QuantizedForm::kInt8 ? 0x1.020406p121f : 0x1p127f;

// Where the parts of a packed buffer begin and end: codes and raw elements of a row, its scales.
inline constexpr int64_t kQuantizedAlignment = 32;

// A stretch of elements. Its slots are counted from the begin of the block that its first element
// lies in, so the first slots and the last may hold none.
struct QuantizedRow {
  enum class Kind : int64_t { kQuantized, kRaw, kGap };

  Kind kind = Kind::kGap;
  int64_t unit = 0;             // The number of its first unit, of all rows' in order.
  int64_t element = 0;          // Which one slot 0 is: below 0 where that is no element.
  int64_t first = 0, last = 0;  // Slots [first, last) hold elements.
  int64_t stored_first = 0, stored_last = 0;  // Slots that are packed: those without element as 0.
  int64_t data = 0;                           // The byte at which stored_first is packed.
  int64_t scales = 0;                         // The byte of the first block's.
  int64_t blocks = 0;  // Scales that are no padding; behind them zeros up to the alignment.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZED_ROW_H_
