#include "trainer/ops/cpu/image_channels_cpu.h"

#include <algorithm>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

constexpr int64_t kRows = 64, kCols = 128;  // Pixels and channels at a time.

struct Sizes {
  int64_t samples, pixels, channels;
};
Sizes SizesOf(const ConstView& images, const ConstView& channels) {
  const int64_t samples = channels.shape[0], all = channels.shape[1];
  return {samples, images.NumElements() / samples / all, all};
}

// Calls body(sample, first channel, channels) for all, each on one thread.
template <typename Body>
void ForEachBlock(ThreadPool& pool, const Sizes& s, const Body& body) {
  const int64_t blocks = (s.channels + kCols - 1) / kCols;
  pool.ParallelFor(s.samples * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t col = task % blocks * kCols;
      body(task / blocks, col, std::min(kCols, s.channels - col));
    }
  });
}

// total[j] = the sum over a sample's pixels of what add(pixel as a row of all, sums) adds to sums.
template <typename Add>
void SumOverPixels(const Sizes& s, int64_t sample, int64_t n, float* total, const Add& add) {
  std::fill_n(total, n, 0.0f);
  for (int64_t first = 0; first < s.pixels; first += kRows) {
    float sums[kCols] = {};
    const int64_t end = std::min(s.pixels, first + kRows);
    for (int64_t pixel = first; pixel < end; ++pixel) add(sample * s.pixels + pixel, sums);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) total[j] += sums[j];
  }
}

}  // namespace

void MeanPixelsForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  const Sizes s = SizesOf(x, y);
  ForEachBlock(pool, s, [&](int64_t sample, int64_t col, int64_t n) {
    float total[kCols], buffer[kCols];
    SumOverPixels(s, sample, n, total, [&](int64_t row, float* sums) {
      const float* const in = ReadFloats(x, row * s.channels + col, n, buffer);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) sums[j] += in[j];
    });
    float* const out = FloatsToWrite(y, sample * s.channels + col, buffer);
    for (int64_t j = 0; j < n; ++j) out[j] = total[j] / static_cast<float>(s.pixels);
    WriteFloats(out, n, y, sample * s.channels + col);
  });
}

void MeanPixelsBackwardCpu(ThreadPool& pool, const ConstView& dy, const View& dx, bool adds) {
  const Sizes s = SizesOf(dx, dy);
  pool.ParallelFor(s.samples * s.pixels, 1, [&](int64_t begin, int64_t end) {
    FloatPiece in_buffer, out_buffer;
    const auto pixels = static_cast<float>(s.pixels);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = row / s.pixels * s.channels, at = row * s.channels;
      ForEachPiece(dx.dtype, 0, s.channels, [&](int64_t col, int64_t n) {
        const float* const in = ReadFloats(dy, from + col, n, in_buffer);
        float* const out = adds ? FloatsToChange(dx, at + col, n, out_buffer)
                                : FloatsToWrite(dx, at + col, out_buffer);
        if (adds) {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) out[j] += in[j] / pixels;
        } else {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) out[j] = in[j] / pixels;
        }
        WriteFloats(out, n, dx, at + col);
      });
    }
  });
}

void ScaleChannelsForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& f,
                             const View& y) {
  const Sizes s = SizesOf(x, f);
  pool.ParallelFor(s.samples * s.pixels, 1, [&](int64_t begin, int64_t end) {
    FloatPiece in_buffer, factor_buffer, out_buffer;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = row / s.pixels * s.channels, at = row * s.channels;
      ForEachPiece(x.dtype, 0, s.channels, [&](int64_t col, int64_t n) {
        const float* const in = ReadFloats(x, at + col, n, in_buffer);
        const float* const factor = ReadFloats(f, from + col, n, factor_buffer);
        float* const out = FloatsToWrite(y, at + col, out_buffer);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] = in[j] * factor[j];
        WriteFloats(out, n, y, at + col);
      });
    }
  });
}

void ScaleChannelsBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& f,
                              const ConstView& dy, const View& dx, const View& df) {
  const Sizes s = SizesOf(x, f);
  ForEachBlock(pool, s, [&](int64_t sample, int64_t col, int64_t n) {
    float total[kCols], in_buffer[kCols], dy_buffer[kCols], out_buffer[kCols], factors[kCols];
    const float* const factor = ReadFloats(f, sample * s.channels + col, n, factors);
    SumOverPixels(s, sample, n, total, [&](int64_t row, float* sums) {
      const int64_t at = row * s.channels + col;
      const float* const in = ReadFloats(x, at, n, in_buffer);
      const float* const g = ReadFloats(dy, at, n, dy_buffer);
      float* const out = FloatsToWrite(dx, at, out_buffer);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const float d = g[j];  // Read before out[j] is written: they may be the same element.
        sums[j] += d * in[j];
        out[j] = d * factor[j];
      }
      WriteFloats(out, n, dx, at);
    });
    float* const to = FloatsToWrite(df, sample * s.channels + col, out_buffer);
    std::copy_n(total, n, to);
    WriteFloats(to, n, df, sample * s.channels + col);
  });
}

}  // namespace fsdp
