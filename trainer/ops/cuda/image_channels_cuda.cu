#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/image_backends.h"

namespace fsdp {
namespace {

constexpr int kRowsAtOnce = 8;  // Per block: each by a warp, with a channel for each lane.

struct Sizes {
  int64_t samples, pixels, channels;

  __host__ __device__ int64_t rows() const { return samples * pixels; }
};
Sizes SizesOf(const ConstView& images, const ConstView& channels) {
  const int64_t samples = channels.shape[0], all = channels.shape[1];
  return {samples, images.NumElements() / samples / all, all};
}

// The sum over pixels of value(element), for this lane's channel of a sample. The first warp gets
// it.
template <typename Value>
__device__ inline float SumOverPixels(const Sizes& s, int64_t sample, int64_t c,
                                      const Value& value) {
  __shared__ float of_warps[kRowsAtOnce][kWarp];
  float sum = 0;
  if (c < s.channels) {
    for (int64_t i = threadIdx.y; i < s.pixels; i += kRowsAtOnce) {
      sum += value((sample * s.pixels + i) * s.channels + c);
    }
  }
  of_warps[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kRowsAtOnce; ++w) sum += of_warps[w][threadIdx.x];
  return sum;
}

template <typename T>
__global__ void MeansOfChannels(Sizes s, const T* x, T* y) {
  const int64_t sample = blockIdx.x, c = int64_t{blockIdx.y} * kWarp + threadIdx.x;
  const float sum = SumOverPixels(s, sample, c, [&](int64_t at) { return ToFloat(x[at]); });
  if (threadIdx.y != 0 || c >= s.channels) return;
  y[sample * s.channels + c] = FromFloat<T>(sum / static_cast<float>(s.pixels));
}

template <typename T>
__global__ void SpreadMeans(Sizes s, const T* dy, bool adds, T* dx) {
  ForEachPiece(s.rows(), s.channels, [&](int64_t row, int64_t c) {
    const float share = ToFloat(dy[row / s.pixels * s.channels + c]) / static_cast<float>(s.pixels);
    T& to = dx[row * s.channels + c];
    to = FromFloat<T>(adds ? ToFloat(to) + share : share);
  });
}

template <typename T>
__global__ void ScaleRows(Sizes s, const T* x, const T* f, T* y) {
  ForEachPiece(s.rows(), s.channels, [&](int64_t row, int64_t c) {
    const float factor = ToFloat(f[row / s.pixels * s.channels + c]);
    y[row * s.channels + c] = FromFloat<T>(ToFloat(x[row * s.channels + c]) * factor);
  });
}

template <typename T>
__global__ void ScaleBackward(Sizes s, const T* x, const T* f, const T* dy, T* dx, T* df) {
  const int64_t sample = blockIdx.x, c = int64_t{blockIdx.y} * kWarp + threadIdx.x;
  const float factor = c < s.channels ? ToFloat(f[sample * s.channels + c]) : 0.0f;
  const float sum = SumOverPixels(s, sample, c, [&](int64_t at) {
    const float d = ToFloat(dy[at]);  // Read before dx[at] is written.
    dx[at] = FromFloat<T>(d * factor);
    return d * ToFloat(x[at]);
  });
  if (threadIdx.y == 0 && c < s.channels) df[sample * s.channels + c] = FromFloat<T>(sum);
}

dim3 GridOfChannels(const Sizes& s) {
  return dim3(static_cast<unsigned>(s.samples), static_cast<unsigned>(CeilDiv(s.channels, kWarp)));
}

}  // namespace

void MeanPixelsForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  const Sizes s = SizesOf(x, y);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<MeansOfChannels<T>>(stream, GridOfChannels(s), dim3(kWarp, kRowsAtOnce), 0, s, x.As<T>(),
                               y.As<T>());
  });
}

void MeanPixelsBackwardCuda(CudaStreamHandle stream, const ConstView& dy, const View& dx,
                            bool adds) {
  const Sizes s = SizesOf(dx, dy);
  ForFloat(dx.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(s.rows(), s.channels);
    Launch<SpreadMeans<T>>(stream, on.grid, on.block, 0, s, dy.As<T>(), adds, dx.As<T>());
  });
}

void ScaleChannelsForwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& f,
                              const View& y) {
  const Sizes s = SizesOf(x, f);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(s.rows(), s.channels);
    Launch<ScaleRows<T>>(stream, on.grid, on.block, 0, s, x.As<T>(), f.As<T>(), y.As<T>());
  });
}

void ScaleChannelsBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& f,
                               const ConstView& dy, const View& dx, const View& df) {
  const Sizes s = SizesOf(x, f);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<ScaleBackward<T>>(stream, GridOfChannels(s), dim3(kWarp, kRowsAtOnce), 0, s, x.As<T>(),
                             f.As<T>(), dy.As<T>(), dx.As<T>(), df.As<T>());
  });
}

}  // namespace fsdp
