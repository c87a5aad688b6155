#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_BATCH_NORM_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_BATCH_NORM_CUDA_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/batch_norm_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void BatchMomentsCuda(CudaStreamHandle stream, const BatchNormShape& shape,
                                    const ConstView& x, const ConstView& weights, const View& part,
                                    const View& workspace);
[[gnu::weak]] void JoinMomentsCuda(CudaStreamHandle stream, const ConstView& parts, float eps,
                                   const View& statistics, float momentum,
                                   const std::optional<View>& mean,
                                   const std::optional<View>& variance);
[[gnu::weak]] void UseRunningMomentsCuda(CudaStreamHandle stream, const ConstView& mean,
                                         const ConstView& variance, float eps,
                                         const View& statistics);
[[gnu::weak]] void BatchNormForwardCuda(CudaStreamHandle stream, const BatchNormShape& shape,
                                        const ConstView& x, const ConstView& statistics,
                                        const ConstView& w, const ConstView& b, bool relu,
                                        const View& y);
[[gnu::weak]] void BatchNormSumsCuda(CudaStreamHandle stream, const BatchNormShape& shape,
                                     const ConstView& x, const ConstView& statistics,
                                     const ConstView& w, const ConstView& b, bool relu,
                                     const ConstView& dy, const std::optional<View>& dw,
                                     const std::optional<View>& db, const View& sums,
                                     const View& workspace);
[[gnu::weak]] void BatchNormBackwardCuda(CudaStreamHandle stream, const BatchNormShape& shape,
                                         const ConstView& x, const ConstView& weights,
                                         const ConstView& statistics, const ConstView& w,
                                         const ConstView& b, bool relu, const ConstView& sums,
                                         const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BATCH_NORM_CUDA_H_
