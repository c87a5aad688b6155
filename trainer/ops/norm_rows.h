// The rows that norms normalise, for the kernels of every device. Not an op itself.
// Tests: tests/trainer/ops/layer_norm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_NORM_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_NORM_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "trainer/runtime/device.h"

namespace fsdp {

// Rows in groups: `inner` rows end to end, then a step of `stride` to the next group; `outer`
// groups.
template <typename AnyView>
struct NormRows {
  AnyView tensor;
  int64_t first, stride;  // Elements.
};

template <typename AnyView, typename Visit>
void ForEachAddress(NormRows<AnyView>& rows, const Visit& visit) {
  visit(rows.tensor);
}

struct NormShape {
  int64_t outer, inner, cols;

  int64_t rows() const { return outer * inner; }
  // The first element of a row.
  template <typename AnyView>
  int64_t At(int64_t row, const NormRows<AnyView>& of) const {
    return of.first + row / inner * of.stride + row % inner * cols;
  }
};

// The number of blocks of rows that are summed apart for the gradients of parameters: enough for 32
// threads or a GPU's processors, and few enough that adding them up is cheap beside the rows.
inline int64_t NormBlocks(int64_t rows, DeviceType device) {
  return std::clamp<int64_t>(rows / 16, 1, device == DeviceType::kCuda ? 512 : 32);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NORM_ROWS_H_
