// Convolutions (convolution.h) by cuDNN's kernels, and whether a run can have them.
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_CUDNN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_CUDNN_H_

#include <set>
#include <string>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// For calls that pass TakenByCudnn() (convolution_workspace.h). All views begin at multiples of 16.
// A thread keeps its plans; the first call of a shape makes its plan. All throw DeviceError.
void ConvolutionForwardCudnn(CudaStreamHandle stream, const ConvolutionShape& shape,
                             const ConstView& x, const ConstView& w, const View& y,
                             const View& workspace);
void ConvolutionDxCudnn(CudaStreamHandle stream, const ConvolutionShape& shape, const ConstView& w,
                        const ConstView& dy, const View& dx, const View& workspace);
void ConvolutionDwCudnn(CudaStreamHandle stream, const ConvolutionShape& shape, const ConstView& x,
                        const ConstView& dy, const View& dw, const View& workspace);

// Makes the plans of these calls before the first of them, on the calling thread, which keeps a
// handle from then on. Throws DeviceError.
void PrepareConvolutionsCudnn(const std::set<ConvolutionCall>& calls);

// The backend of a run on GPU `gpu` that makes `calls`, each of which passes TakenByCudnn(). cuDNN
// is asked for a plan of each. Without cuDNN, or where it has a plan for none, our own kernels.
struct FoundConvolutions {
  ConvolutionBackend backend = {};
  // For people: "cuDNN 9.19.0", "cuDNN 9.19.0, 2 of 30 products by own kernels (why)", "own kernels
  // (why)". Empty: no call was asked about.
  std::string name;
};
FoundConvolutions FindConvolutions(int gpu, const std::set<ConvolutionCall>& calls);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_CUDNN_H_
