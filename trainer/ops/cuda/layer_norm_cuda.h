#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LAYER_NORM_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LAYER_NORM_CUDA_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void LayerNormForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                        const ConstView& w, const ConstView& b, float eps,
                                        const View& y, const View& mean, const View& rstd);

// `workspace`: [blocks, 2, cols], the sums for dw and db of each block of rows.
[[gnu::weak]] void LayerNormBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const ConstView& w, const ConstView& mean,
                                         const ConstView& rstd, const ConstView& dy, int64_t blocks,
                                         bool add, const View& dx, const std::optional<View>& dw,
                                         const std::optional<View>& db, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LAYER_NORM_CUDA_H_
