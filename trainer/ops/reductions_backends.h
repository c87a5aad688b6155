// Kernels of reductions.h.
// Tests: tests/trainer/ops/reductions_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_BACKENDS_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// One partial result of a sum. A last kernel adds up at most kMaxSquaresGroups of them.
struct SquaresOfGroup {
  double sum;
  int64_t not_finite;  // Elements.
};
inline constexpr int64_t kMaxSquaresGroups = 1024;
inline constexpr int64_t kSquaresChunk = 256;  // As in reductions.h; a warp sums one.
inline constexpr int64_t kSquaresWarps = 8;    // Per group; each has two chunks or more.
inline int64_t SquaresGroups(int64_t n) {      // For n elements.
  constexpr int64_t kElements = 2 * kSquaresWarps * kSquaresChunk;
  return std::min(kMaxSquaresGroups, (n + kElements - 1) / kElements);
}

[[gnu::weak]] void SumOfSquaresCuda(CudaStreamHandle stream, const ConstView& x, const View& out,
                                    const View& workspace);
[[gnu::weak]] void UnscaledSumOfSquaresCuda(CudaStreamHandle stream, const ConstView& x,
                                            const ConstView& scale, const View& out,
                                            const View& found, const View& workspace);
[[gnu::weak]] void ClipCoefficientCuda(CudaStreamHandle stream, const ConstView& loss,
                                       const ConstView& sum_of_squares, const ConstView& mean_scale,
                                       const std::optional<ConstView>& loss_scale,
                                       const std::optional<ConstView>& found_inf, float max_norm,
                                       const View& norm, const View& coefficient);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_REDUCTIONS_BACKENDS_H_
