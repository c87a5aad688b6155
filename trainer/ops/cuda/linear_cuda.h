#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LINEAR_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LINEAR_CUDA_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void LinearForwardCuda(CudaStreamHandle stream, WeightLayout layout,
                                     const ConstView& x, const ConstView& w,
                                     const std::optional<ConstView>& b,
                                     const std::optional<ConstView>& residual,
                                     const std::optional<View>& u, const View& y);
[[gnu::weak]] void LinearBackwardCuda(CudaStreamHandle stream, WeightLayout layout,
                                      const std::optional<ConstView>& u, const ConstView& x,
                                      const ConstView& w, const ConstView& dy,
                                      const std::optional<View>& dx, const std::optional<View>& dw,
                                      const std::optional<View>& db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LINEAR_CUDA_H_
