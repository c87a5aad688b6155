// Tests: tests/trainer/ops/convolution_test.cc
#include "trainer/ops/convolution_backends.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256;

// The place in [out, channels, taps] of element i of [out, taps, channels].
__device__ inline int64_t Unfolded(int64_t i, int64_t channels, int64_t taps) {
  const int64_t row = i / channels;  // (out, tap)
  return (row / taps * channels + i % channels) * taps + row % taps;
}

template <typename T>
__global__ void FoldWeights(const T* w, int64_t n, int64_t channels, int64_t taps, T* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] = w[Unfolded(i, channels, taps)];
}

template <typename T, typename G>
__global__ void AddFolded(const T* sums, int64_t n, int64_t channels, int64_t taps, G* dw) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  G& to = dw[Unfolded(i, channels, taps)];
  to = FromFloat<G>(ToFloat(to) + ToFloat(sums[i]));
}

dim3 GridOf(const ConvolutionShape& s) {
  return dim3(static_cast<unsigned>(CeilDiv(s.weights(), kThreads)));
}

}  // namespace

void FoldWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& w,
                     std::byte* to) {
  ForFloat(w.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<FoldWeights<T>>(stream, GridOf(s), dim3(kThreads), 0, w.As<T>(), s.weights(),
                           s.group_in(), s.taps(), reinterpret_cast<T*>(to));
  });
}

void AddFoldedWeightsCuda(CudaStreamHandle stream, const ConvolutionShape& s, const ConstView& sums,
                          const View& dw) {
  ForFloat(sums.dtype, [&](auto sum_is) {
    using T = typename decltype(sum_is)::type;
    ForFloat(dw.dtype, [&](auto is) {
      using G = typename decltype(is)::type;
      Launch<AddFolded<T, G>>(stream, GridOf(s), dim3(kThreads), 0, sums.As<T>(), s.weights(),
                              s.group_in(), s.taps(), dw.As<G>());
    });
  });
}

}  // namespace fsdp
