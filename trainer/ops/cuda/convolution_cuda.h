#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_CUDA_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void ConvolutionForwardCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                          const ConstView& x, const ConstView& w, const View& y,
                                          const View& workspace);
[[gnu::weak]] void ConvolutionBackwardCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                           const ConstView& x, const ConstView& w,
                                           const ConstView& dy, const std::optional<View>& dx,
                                           const std::optional<View>& dw, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_CUDA_H_
