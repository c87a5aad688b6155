// Kernels of convolutions: convolution.h.
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKENDS_H_

#include <cstddef>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Place: ThreadPool& on the CPU, CudaStreamHandle on CUDA.
template <typename Place>
using ConvolutionForwardKernel = void(Place place, const ConvolutionShape& shape,
                                      const ConstView& x, const ConstView& w, const View& y,
                                      const View& workspace);
ConvolutionForwardKernel<ThreadPool&> ConvolutionForwardCpu;
[[gnu::weak]] ConvolutionForwardKernel<CudaStreamHandle> ConvolutionForwardCuda;

template <typename Place>
using ConvolutionBackwardKernel = void(Place place, const ConvolutionShape& shape,
                                       const ConstView& x, const ConstView& w, const ConstView& dy,
                                       const std::optional<View>& dx, const std::optional<View>& dw,
                                       const View& workspace);
ConvolutionBackwardKernel<ThreadPool&> ConvolutionBackwardCpu;
[[gnu::weak]] ConvolutionBackwardKernel<CudaStreamHandle> ConvolutionBackwardCuda;

// The weights in the order in which cuDNN reads and writes them: channels side by side. Ours are
// [out, channels, taps] (convolution.h), cuDNN's [out, taps, channels].
//
// to = w in cuDNN's order, in the dtype of w.
[[gnu::weak]] void FoldWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                   const ConstView& w, std::byte* to);
// dw += sums, which are in cuDNN's order. Each element is added in fp32 and rounded once.
[[gnu::weak]] void AddFoldedWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& shape,
                                        const ConstView& sums, const View& dw);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_BACKENDS_H_
