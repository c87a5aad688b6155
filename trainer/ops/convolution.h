// A convolution of images whose channels lie side by side, without a bias:
//   y[s, i, j, o] = sum over (a, b, c) of w[o, c, a, b] x[s, i stride + a - p, j stride + b - q,
//   c']
// where p and q are the padding, x is 0 outside the image, and c' is channel c of o's group: the
// first out / groups outputs see the first in / groups inputs, and so on. As torch.nn.Conv2d.
//
// x, dx: [samples, height, width, in], y, dy: [samples, out_height, out_width, out], fp32, bf16 or
// fp16, all of one dtype; w: [out, in / groups, kernel_height, kernel_width], as in Hugging Face
// files, of that dtype or fp32; dw: like w, of any of the three. A side of y has floor((size + 2
// padding - kernel) / stride) + 1 pixels. Sums are fp32, and rounded once when they are complete. y
// is summed over (a, b, c), dx over (a, b, o), dw over pixels, in an order that the shape alone
// decides, whatever the number of threads. Nothing is saved beyond x and w.
//
// A kernel of one pixel without groups and padding is a matrix product (cpu/gemm/gemm.h,
// cuda/gemm/gemm.h); with stride > 1 it is a product of the pixels that the kernel reads. Other
// kernels are products on the CPU, too, of a MiB of unfolded pixels at a time, in memory that each
// thread keeps to itself. On CUDA one kernel unfolds while it multiplies.
//
// A backend lets a CUDA device run cuDNN's kernels (cudnn/convolution_plan.h says which of them)
// instead of that one, where x and w have one dtype and images begin at multiples of 16 bytes.
// They sum in fp32, in an order of their own, which is the same in each run. Their sums for dw are
// rounded to the dtype of x before they are added to dw. No GPU has run them yet: a fake of cuDNN
// has, and the real one makes plans of them.
// Cost: 2 out_pixels out in / groups kernel_height kernel_width FLOPs a product.
// Throws std::invalid_argument before anything is enqueued: dtypes, shapes, overlapping results, a
// kernel that does not fit, groups that do not divide the channels.
#ifndef FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_H_
#define FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Overwrites y, which overlaps nothing else.
void ConvolutionForward(Stream& stream, ConstView x, ConstView w, const ConvolutionWindow& window,
                        View y, View workspace, const ConvolutionBackend& backend = {});

//   dx  = the gradient of x   overwritten
//   dw += the gradient of w   added to, so that micro-batches accumulate
// Either may be left out: dx for a layer that starts the network, dw for a frozen parameter. x is
// read only for dw, w only for dx. The results overlap nothing else.
void ConvolutionBackward(Stream& stream, ConstView x, ConstView w, const ConvolutionWindow& window,
                         ConstView dy, std::optional<View> dx, std::optional<View> dw,
                         View workspace, const ConvolutionBackend& backend = {});

// The shape of a convolution of x [samples, height, width, in] by w. Throws as above; the message
// names the op `name`, a literal.
ConvolutionShape ShapeOfConvolution(const char* name, const Shape& x, const Shape& w,
                                    const ConvolutionWindow& window);

// Bytes of `workspace` with x and w of these dtypes, for the kernels of `device` (never kSim). A
// pointwise kernel with a stride needs the pixels that it reads. The CPU also needs the weights in
// another order, and fp32 parts of dw; CUDA also needs the parts of dw. cuDNN's bytes are in
// cudnn/convolution_cudnn.h. The workspace starts at a multiple of 16.
int64_t ConvolutionForwardWorkspaceBytes(const ConvolutionShape& shape, DType x, DType w,
                                         DeviceType device, const ConvolutionBackend& backend = {});
int64_t ConvolutionBackwardWorkspaceBytes(const ConvolutionShape& shape, DType x, DType w, bool dx,
                                          bool dw, DeviceType device,
                                          const ConvolutionBackend& backend = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_H_
