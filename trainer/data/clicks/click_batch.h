// Tests: tests/trainer/data/clicks/click_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/core/batch.h"

namespace fsdp {

// The inputs of a model that predicts clicks, in this order: the numbers of the dense columns, fp32
// [columns]; the ids of the categorical ones, int32 [slots, 2], the two words of a 64-bit id, the
// low one first, and kNoId in the slots without one; a label, fp32, 0 or 1; a weight.
enum ClickInput : size_t { kDense, kIds, kClick, kClickWeight };

// An absent id: -1 in both words.
inline constexpr uint64_t kNoId = ~uint64_t{0};

// The inputs' specification. Both numbers are at least 1; slots: the most ids of a cell, summed
// over the categorical columns.
BatchSpec ClickInputs(int64_t columns, int64_t slots);

// Whether these are a model's inputs.
bool IsOfClicks(const BatchSpec& spec);

// Writes an id as its two words.
inline void WriteId(uint64_t id, std::span<int32_t, 2> words) {
  words[0] = static_cast<int32_t>(static_cast<uint32_t>(id));
  words[1] = static_cast<int32_t>(static_cast<uint32_t>(id >> 32));
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_BATCH_H_
