// The tables and blocks that the optimizers' ops read, in the form of bytes, for tests.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPS_OPTIMIZER_BLOCKS_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPS_OPTIMIZER_BLOCKS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {

// The values of a uint8 tensor that holds these bytes.
template <typename T>
std::vector<double> BytesOf(const T* values, size_t count) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  return {bytes, bytes + count * sizeof(T)};
}

// A view of them in place.
template <typename T>
View ViewOfBytes(T* values, size_t count) {
  return {reinterpret_cast<std::byte*>(values), DType::kUInt8,
          Shape{static_cast<int64_t>(count * sizeof(T))}};
}

// The factors of update t, by the formulas.
inline UpdateFactors FactorsAt(double lr, double beta1, double beta2, int64_t t) {
  const double n = static_cast<double>(t);
  return {.update = t,
          .lr = lr,
          .correction1 = 1 - std::pow(beta1, n),
          .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, n)))};
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPS_OPTIMIZER_BLOCKS_H_
