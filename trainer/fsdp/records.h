// The records of coded weights (ops/weight_codes.h) as they are made, and what identifies them.
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

// XXH64 of a slice's record as RecordSource::fill() makes it, and of its scales, if there are any.
// The sum over all records identifies a run's coded weights, whichever rank holds which.
uint64_t HashOfRecord(const ParameterSlice& slice, int64_t index, std::span<const uint8_t> record,
                      std::span<const float> scales);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_RECORDS_H_
