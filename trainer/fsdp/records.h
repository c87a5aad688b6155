// The records of coded weights (ops/weight_codes.h) as they are made, and what identifies a base.
// Tests: tests/trainer/engine/coded_weights_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_RECORDS_H_
#define FSDP_TRAIN_TRAINER_FSDP_RECORDS_H_

#include <cstdint>
#include <span>

#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

// Blocks of a slice: elements that share a scale.
int64_t BlocksOf(const ParameterSlice& slice);

// Encodes what `read` gives, 1 MiB of it at a time.
RecordSource RecordsOf(FillParameter read);

// The sum of the hashes of all records, and of all elements of frozen weights without a code,
// identifies the base of a run, whichever rank holds which. Both are XXH64's.

// A slice's record as RecordSource::fill() makes it, and its scales, if there are any.
uint64_t HashOfRecord(const ParameterSlice& slice, int64_t index, std::span<const uint8_t> record,
                      std::span<const float> scales);
// Elements [begin, begin + n) of a parameter: the sum over them. Each is known by its slice's name
// and its place there, so that the parts of a parameter have the sum of the whole.
uint64_t HashOfValues(const Parameter& parameter, int64_t begin, std::span<const float> values);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_RECORDS_H_
