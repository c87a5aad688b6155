#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_RMS_NORM_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_RMS_NORM_CUDA_H_

#include <cstdint>
#include <optional>

#include "trainer/ops/norm_rows.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void RmsNormForwardCuda(CudaStreamHandle stream, const NormShape& shape,
                                      const NormRows<ConstView>& x, const ConstView& w, float eps,
                                      const NormRows<View>& y, const View& r);

// `workspace`: [blocks, cols], the sums for dw of each block of rows.
[[gnu::weak]] void RmsNormBackwardCuda(CudaStreamHandle stream, const NormShape& shape,
                                       const NormRows<ConstView>& x, const ConstView& w,
                                       const ConstView& r, const NormRows<ConstView>& dy,
                                       int64_t blocks, bool add, const NormRows<View>& dx,
                                       const std::optional<View>& dw, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_RMS_NORM_CUDA_H_
