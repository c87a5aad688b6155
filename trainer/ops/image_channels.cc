#include "trainer/ops/image_channels.h"

#include <algorithm>
#include <string>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/image_backends.h"
#include "trainer/runtime/operation.h"

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

double Bytes(const ConstView& view) { return static_cast<double>(view.bytes()); }

// Images [samples, ..., channels]. The shape of their channels.
Shape CheckImages(const Arguments& args, const char* name, const ConstView& images) {
  args.CheckDType(name, images.dtype, kFloatDTypes);
  args.Check(name, images, images.dtype, images.shape);
  const int rank = images.shape.rank();
  if (rank < 2 || images.NumElements() == 0) {
    args.Fail(std::string(name) + " is " + images.shape.ToString() +
              ", want [samples, ..., channels] with elements");
  }
  return {images.shape[0], images.shape[rank - 1]};
}

}  // namespace

void MeanPixelsForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "mean_pixels_forward";
  const Arguments args(kOp);
  args.Check("y", y, x.dtype, CheckImages(args, "x", x));
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.flops = static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x),
                  .bytes_written = Bytes(y)};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(MeanPixelsForwardCpu, x, y), OnCuda(MeanPixelsForwardCuda, x, y)}});
}

void MeanPixelsBackward(Stream& stream, ConstView dy, View dx, bool adds) {
  constexpr const char* kOp = "mean_pixels_backward";
  const Arguments args(kOp);
  args.Check("dy", dy, dx.dtype, CheckImages(args, "dx", dx));
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.flops = static_cast<double>(dx.NumElements()) * (adds ? 2 : 1),
                  .bytes_read = Bytes(dy) + (adds ? Bytes(dx) : 0),
                  .bytes_written = Bytes(dx)};
  std::vector<Range> reads = {dy};
  if (adds) reads.push_back(dx);
  stream.Enqueue(
      {kOp,
       reads,
       {dx},
       {cost},
       {OnCpu(MeanPixelsBackwardCpu, dy, dx, adds), OnCuda(MeanPixelsBackwardCuda, dy, dx, adds)}});
}

void ScaleChannelsForward(Stream& stream, ConstView x, ConstView f, View y) {
  constexpr const char* kOp = "scale_channels_forward";
  const Arguments args(kOp);
  args.Check("f", f, x.dtype, CheckImages(args, "x", x));
  args.Check("y", y, x.dtype, x.shape);
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "f", f);
  const Cost cost{.flops = static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(f),
                  .bytes_written = Bytes(y)};
  stream.Enqueue(
      {kOp,
       {x, f},
       {y},
       {cost},
       {OnCpu(ScaleChannelsForwardCpu, x, f, y), OnCuda(ScaleChannelsForwardCuda, x, f, y)}});
}

void ScaleChannelsBackward(Stream& stream, ConstView x, ConstView f, ConstView dy, View dx,
                           View df) {
  constexpr const char* kOp = "scale_channels_backward";
  const Arguments args(kOp);
  const Shape channels = CheckImages(args, "x", x);
  args.Check("f", f, x.dtype, channels);
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("dx", dx, x.dtype, x.shape);
  args.Check("df", df, x.dtype, channels);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "f", f);
  args.CheckDisjoint("df", df, "x", x);
  args.CheckDisjoint("df", df, "f", f);
  args.CheckDisjoint("df", df, "dy", dy);
  args.CheckDisjoint("df", df, "dx", dx);
  const Cost cost{.flops = 3 * static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(f) + Bytes(dy),
                  .bytes_written = Bytes(dx) + Bytes(df)};
  stream.Enqueue({kOp,
                  {x, f, dy},
                  {dx, df},
                  {cost},
                  {OnCpu(ScaleChannelsBackwardCpu, x, f, dy, dx, df),
                   OnCuda(ScaleChannelsBackwardCuda, x, f, dy, dx, df)}});
}

}  // namespace fsdp
