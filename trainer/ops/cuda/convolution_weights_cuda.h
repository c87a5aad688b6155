// The kernel of a convolution in the order in which cuDNN reads and writes it: channels side by
// side. Ours are [out, channels, taps] (convolution.h), cuDNN's [out, taps, channels].
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_WEIGHTS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_WEIGHTS_CUDA_H_

#include <cstddef>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// to = w in cuDNN's order, in the dtype of w.
[[gnu::weak]] void FoldWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                   const ConstView& w, std::byte* to);
// dw += sums, which are in cuDNN's order. Each element is added in fp32 and rounded once.
[[gnu::weak]] void AddFoldedWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                        const ConstView& sums, const View& dw);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_CONVOLUTION_WEIGHTS_CUDA_H_
