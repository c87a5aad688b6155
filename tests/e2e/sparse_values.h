// What sparse_checkpoint writes, for those who look for it.
#ifndef FSDP_TRAIN_TESTS_E2E_SPARSE_VALUES_H_
#define FSDP_TRAIN_TESTS_E2E_SPARSE_VALUES_H_

#include <string_view>

#include "trainer/core/philox.h"

namespace fsdp {

// The first or last element of a parameter: a whole number from 1 to 128, which bf16 holds.
inline float SparseValue(std::string_view parameter, bool last) {
  return static_cast<float>(1 + HashBytes(parameter, last ? 2 : 1) % 128);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_E2E_SPARSE_VALUES_H_
