// Convolutions (convolution.h) by cuDNN's kernels: the calls that they take, the memory that these
// get, and whether a run can have them. Calls and memory are functions of shape and dtype alone, so
// a plan needs neither GPU nor cuDNN.
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_CUDNN_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CONVOLUTION_CUDNN_H_

#include <cstdint>
#include <set>
#include <string>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// Whether cuDNN gets this call where the machine has it. It gets none whose kernel is a matrix
// product, whose images and weights have two dtypes, or that has nothing to compute.
bool TakenByCudnn(const ConvolutionBackend& backend, const ConvolutionCall& call);

// Bytes of the parts, which follow each other; each is a multiple of 256.
struct CudnnConvolutionWorkspace {
  int64_t plan = 0;  // The most that a plan of cuDNN's may want. One that wants more is not taken.
  int64_t weights = 0;  // w or dw, in the dtype of x, with the channels side by side.

  int64_t bytes() const { return plan + weights; }
};

// plan: room for copies of images and weights with more channels to a group, which cuDNN's kernels
// for tensor cores make, and for 32 parts of dw, at most 32 MiB. It holds the plan that cuDNN 9.19
// names first for an H100, in bf16, for groups of 8 to 1010 channels.
CudnnConvolutionWorkspace CudnnWorkspaceOf(const ConvolutionCall& call);

// For calls that pass TakenByCudnn(). All views begin at multiples of 16.
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
