// The forms in which frozen weights are kept: see weight_codes.h.
// Tests: tests/trainer/ops/weight_records_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODE_H_
#define FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODE_H_

#include <cstdint>

namespace fsdp {

enum class WeightCode : uint8_t {
  kNone,       // In their own dtype.
  kNf4,        // Four bits an element and a scale in fp32 for each 64.
  kNf4Nested,  // The same, with scales in eight bits.
  kInt8,       // Eight bits an element and a scale in fp32 for each 64.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODE_H_
