#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/runtime/kernel.h"

namespace fsdp {

// Row i of outer * inner: inner rows end to end, then a step of `stride` to the next ones.
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

void RmsNormForwardCpu(ThreadPool& pool, const NormShape& shape, const NormRows<ConstView>& x,
                       const ConstView& w, float eps, const NormRows<View>& y, const View& r);

// `workspace`: [blocks, cols], the sums for dw of each block of rows.
void RmsNormBackwardCpu(ThreadPool& pool, const NormShape& shape, const NormRows<ConstView>& x,
                        const ConstView& w, const ConstView& r, const NormRows<ConstView>& dy,
                        int64_t blocks, bool add, const NormRows<View>& dx,
                        const std::optional<View>& dw, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_
