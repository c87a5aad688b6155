// The rows that norms normalise, and the kernels of a GPU for norm.h.
// Tests: tests/trainer/ops/norm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_NORM_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_NORM_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

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

// LayerNorm has `b` and `mean`, RMSNorm neither.
[[gnu::weak]] void NormForwardCuda(CudaStreamHandle stream, const NormShape& shape,
                                   const NormRows<ConstView>& x, const ConstView& w,
                                   const std::optional<ConstView>& b, float eps,
                                   const NormRows<View>& y, const std::optional<View>& mean,
                                   const View& r);

// `workspace`: the sums for dw, and LayerNorm's for db behind them, of each block of rows: [blocks,
// 1 or 2, cols].
[[gnu::weak]] void NormBackwardCuda(CudaStreamHandle stream, const NormShape& shape,
                                    const NormRows<ConstView>& x, const ConstView& w,
                                    const std::optional<ConstView>& mean, const ConstView& r,
                                    const NormRows<ConstView>& dy, int64_t blocks, bool add,
                                    const NormRows<View>& dx, const std::optional<View>& dw,
                                    const std::optional<View>& db, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NORM_BACKENDS_H_
