#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_REDUCTIONS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_REDUCTIONS_CUDA_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

// What the kernels of both sums leave for the one that adds it up, at most so many.
struct SquaresOfGroup {
  double sum;
  int64_t not_finite;  // Elements.
};
inline constexpr int64_t kMaxSquaresGroups = 1024;

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

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_REDUCTIONS_CUDA_H_
