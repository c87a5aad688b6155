// The sizes of a convolution (convolution.h), as checks and kernels of all devices use them.
// Tests: tests/trainer/ops/convolution_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_SHAPE_H_
#define FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_SHAPE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "trainer/core/dtype.h"

namespace fsdp {

// How a kernel passes over an image. Padding is zeros on both sides.
struct ConvolutionWindow {
  int64_t stride = 1;  // Pixels, in both directions.
  int64_t padding_height = 0, padding_width = 0;
  int64_t groups = 1;  // Groups of channels. An output sees the inputs of its group alone.

  auto operator<=>(const ConvolutionWindow&) const = default;
};

// Pixels of an output side for an input side `size`. Less than 1: the kernel does not fit.
inline int64_t ConvolvedSide(int64_t size, int64_t kernel, int64_t stride, int64_t padding) {
  const int64_t free = size + 2 * padding - kernel;
  return free < 0 ? 0 : free / stride + 1;
}

struct ConvolutionShape {
  int64_t samples, height, width, in, out;
  int64_t kernel_height, kernel_width;
  ConvolutionWindow window;

  auto operator<=>(const ConvolutionShape&) const = default;

  int64_t out_height() const {
    return ConvolvedSide(height, kernel_height, window.stride, window.padding_height);
  }
  int64_t out_width() const {
    return ConvolvedSide(width, kernel_width, window.stride, window.padding_width);
  }
  int64_t in_pixels() const { return samples * height * width; }
  int64_t out_pixels() const { return samples * out_height() * out_width(); }
  int64_t taps() const { return kernel_height * kernel_width; }
  int64_t group_in() const { return in / window.groups; }
  int64_t group_out() const { return out / window.groups; }
  int64_t terms() const { return taps() * group_in(); }  // Terms of one sum.
  int64_t weights() const { return out * terms(); }

  // A matrix product of the tensors as they lie, or, with a stride, of every stride-th pixel.
  bool is_pointwise() const {
    return taps() == 1 && window.groups == 1 && window.padding_height == 0 &&
           window.padding_width == 0;
  }
  bool is_product() const { return is_pointwise() && window.stride == 1; }

  // The number of parts of the pixels whose shares of dw are summed apart, in fp32; the parts are
  // then added up in order. There are several where `tiles`, which may be computed at a time, are
  // fewer than `wanted`. The sums take at most 64 MiB, and a part has at least 256 pixels.
  int64_t WeightSlices(int64_t tiles, int64_t wanted) const {
    constexpr int64_t kMostBytes = int64_t{64} << 20, kFewestPixels = 256;
    const int64_t bytes = std::max<int64_t>(1, weights() * int64_t{sizeof(float)});
    const int64_t most = std::min(kMostBytes / bytes, out_pixels() / kFewestPixels);
    return std::clamp<int64_t>((wanted + tiles - 1) / std::max<int64_t>(1, tiles), 1,
                               std::max<int64_t>(1, most));
  }
  int64_t WeightSlicesOnCpu() const { return WeightSlices(window.groups, 8); }
  int64_t WeightSlicesOnCuda() const {
    constexpr int64_t kTile = 64;
    const int64_t down = (group_out() + kTile - 1) / kTile, right = (terms() + kTile - 1) / kTile;
    return WeightSlices(window.groups * down * right, 256);
  }
};

// The kernels that compute convolutions on CUDA. A run decides once, before its memory is planned.
// On a CPU a backend means nothing.
// One product of a convolution: y, dx or dw (convolution.h).
struct ConvolutionCall {
  enum class Pass { kForward, kDx, kDw };
  Pass pass = Pass::kForward;
  ConvolutionShape shape = {};
  DType x = DType::kFloat32, w = DType::kFloat32;  // Dtypes of the images, and of the weights.

  auto operator<=>(const ConvolutionCall&) const = default;
};

struct ConvolutionBackend {
  // cuDNN's kernels, for the calls that it can have (cudnn/convolution_cudnn.h) except
  // `refused`. Our own kernels for others.
  bool cudnn = false;
  std::vector<ConvolutionCall> refused = {};  // This machine's cuDNN has no kernel for them.
  // Null, or gets the calls that cuDNN can have, as they are asked for.
  std::set<ConvolutionCall>* asked = nullptr;

  bool Refused(const ConvolutionCall& call) const {
    return std::find(refused.begin(), refused.end(), call) != refused.end();
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CONVOLUTION_SHAPE_H_
