// Tests: tests/trainer/core/units_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_HEX_H_
#define FSDP_TRAIN_TRAINER_CORE_HEX_H_

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>

namespace fsdp {

// Sixteen hexadecimal digits.
inline std::string ToHex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_HEX_H_
