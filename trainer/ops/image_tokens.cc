#include "trainer/ops/image_tokens.h"

#include <cstring>
#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/image_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Elements [begin, begin + n) of `from`, bit for bit, become those of `to` from `at` on.
void CopyElements(const ConstView& from, int64_t begin, int64_t n, const View& to, int64_t at) {
  const int64_t size = SizeOf(to.dtype);
  std::memcpy(to.data + at * size, from.data + begin * size, static_cast<size_t>(n * size));
}

void CutPatchesCpu(ThreadPool& pool, const ConstView& pixels, int64_t patch, PatchOrder order,
                   const View& patches) {
  const int64_t height = pixels.shape[1], width = pixels.shape[2], channels = pixels.shape[3];
  const int64_t down = height / patch, along = width / patch, cols = patches.shape[1];
  const auto* const image = pixels.As<float>();
  pool.ParallelFor(patches.shape[0], 1, [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / (down * along), place = row % (down * along);
      const float* const corner =
          image +
          ((sample * height + place / along * patch) * width + place % along * patch) * channels;
      ForEachPiece(patches.dtype, 0, cols, [&](int64_t col, int64_t n) {
        float* const out = FloatsToWrite(patches, row * cols + col, buffer);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = col + i;
          int64_t y, x, channel;
          if (order == PatchOrder::kChannelFirst) {
            channel = at / (patch * patch), y = at / patch % patch, x = at % patch;
          } else {
            channel = at % channels, x = at / channels % patch, y = at / channels / patch;
          }
          out[i] = corner[(y * width + x) * channels + channel];
        }
        WriteFloats(out, n, patches, row * cols + col);
      });
    }
  });
}

void JoinTokensForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& first,
                          const ConstView& positions, int64_t samples, const View& y) {
  const int64_t cols = y.shape[1], all = y.shape[0] / samples;
  pool.ParallelFor(y.shape[0], 1, [&](int64_t begin, int64_t end) {
    FloatPiece token_buffer, position_buffer, out_buffer;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / all, place = row % all;
      ForEachPiece(y.dtype, 0, cols, [&](int64_t col, int64_t n) {
        const float* const token =
            place == 0
                ? ReadFloats(first, col, n, token_buffer)
                : ReadFloats(x, (sample * (all - 1) + place - 1) * cols + col, n, token_buffer);
        const float* const position = ReadFloats(positions, place * cols + col, n, position_buffer);
        float* const out = FloatsToWrite(y, row * cols + col, out_buffer);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] = token[j] + position[j];
        WriteFloats(out, n, y, row * cols + col);
      });
    }
  });
}

void JoinTokensBackwardCpu(ThreadPool& pool, const ConstView& dy, int64_t samples, const View& dx,
                           const std::optional<View>& dfirst,
                           const std::optional<View>& dpositions) {
  const int64_t cols = dy.shape[1], all = dy.shape[0] / samples;
  pool.ParallelFor(all, 1, [&](int64_t begin, int64_t end) {
    FloatPiece in_buffer, sum_buffer;
    const auto add = [&](int64_t place, const View& to, int64_t at) {
      ForEachPiece(DType::kBFloat16, 0, cols, [&](int64_t col, int64_t n) {
        float* const sum = FloatsToChange(to, at + col, n, sum_buffer);
        for (int64_t s = 0; s < samples; ++s) {
          const float* const in = ReadFloats(dy, (s * all + place) * cols + col, n, in_buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) sum[j] += in[j];
        }
        WriteFloats(sum, n, to, at + col);
      });
    };
    for (int64_t place = begin; place < end; ++place) {
      if (dpositions) add(place, *dpositions, place * cols);
      if (place == 0) {
        if (dfirst) add(place, *dfirst, 0);
        continue;
      }
      for (int64_t s = 0; s < samples; ++s) {
        CopyElements(dy, (s * all + place) * cols, cols, dx, (s * (all - 1) + place - 1) * cols);
      }
    }
  });
}

void FirstTokensForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  const int64_t samples = y.shape[0], cols = y.shape[1];
  const int64_t all = x.shape[0] / samples;
  pool.ParallelFor(samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) CopyElements(x, s * all * cols, cols, y, s * cols);
  });
}

void FirstTokensBackwardCpu(ThreadPool& pool, const ConstView& dy, const View& dx) {
  const int64_t samples = dy.shape[0], cols = dy.shape[1];
  const int64_t all = dx.shape[0] / samples;
  pool.ParallelFor(samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      CopyElements(dy, s * cols, cols, dx, s * all * cols);
      const int64_t size = SizeOf(dx.dtype) * cols;
      std::memset(dx.data + (s * all + 1) * size, 0, static_cast<size_t>((all - 1) * size));
    }
  });
}

// Rows of a sample.
int64_t RowsOf(const Arguments& arguments, const char* name, const ConstView& matrix,
               int64_t samples) {
  const int64_t rows = matrix.shape[0];
  if (samples < 1 || rows == 0 || rows % samples != 0) {
    arguments.Fail(std::string(name) + " has " + std::to_string(rows) + " rows, for " +
                   std::to_string(samples) + " samples");
  }
  return rows / samples;
}

}  // namespace

void CutPatches(Stream& stream, ConstView pixels, int64_t patch, PatchOrder order, View patches) {
  constexpr const char* kOp = "cut_patches";
  const Arguments args(kOp);
  args.CheckRank("pixels", pixels, DType::kFloat32, 4);
  args.CheckDType("patches", patches.dtype, kFloatDTypes);
  const Shape& image = pixels.shape;
  if (patch < 1 || image[1] % patch != 0 || image[2] % patch != 0) {
    args.Fail("pixels are " + image.ToString() + ", whose sides " + std::to_string(patch) +
              " does not divide");
  }
  args.Check("patches", patches, patches.dtype,
             {image[0] * (image[1] / patch) * (image[2] / patch), patch * patch * image[3]});
  args.CheckDisjoint("patches", patches, "pixels", pixels);
  const Cost cost{.bytes_read = static_cast<double>(pixels.bytes()),
                  .bytes_written = static_cast<double>(patches.bytes())};
  stream.Enqueue({kOp,
                  {pixels},
                  {patches},
                  {cost},
                  {OnCpu(CutPatchesCpu, pixels, patch, order, patches),
                   OnCuda(CutPatchesCuda, pixels, patch, order, patches)}});
}

void JoinTokensForward(Stream& stream, ConstView x, ConstView first, ConstView positions,
                       int64_t samples, View y) {
  constexpr const char* kOp = "join_tokens_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("x", x, y.dtype, 2);
  const int64_t cols = x.shape[1], all = 1 + RowsOf(args, "x", x, samples);
  args.CheckWeight("first", first, y.dtype, {cols});
  args.CheckRank("positions", positions, positions.dtype, 2);
  args.CheckWeight("positions", positions, y.dtype, {all, cols});
  args.Check("y", y, y.dtype, {samples * all, cols});
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "first", first);
  args.CheckDisjoint("y", y, "positions", positions);
  const Cost cost{.flops = static_cast<double>(y.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes() + first.bytes() + positions.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp,
                  {x, first, positions},
                  {y},
                  {cost},
                  {OnCpu(JoinTokensForwardCpu, x, first, positions, samples, y),
                   OnCuda(JoinTokensForwardCuda, x, first, positions, samples, y)}});
}

void JoinTokensBackward(Stream& stream, ConstView dy, int64_t samples, View dx,
                        std::optional<View> dfirst, std::optional<View> dpositions) {
  constexpr const char* kOp = "join_tokens_backward";
  const Arguments args(kOp);
  args.CheckDType("dy", dy.dtype, kFloatDTypes);
  args.CheckRank("dy", dy, dy.dtype, 2);
  const int64_t cols = dy.shape[1], all = RowsOf(args, "dy", dy, samples);
  args.Check("dx", dx, dy.dtype, {dy.shape[0] - samples, cols});
  args.CheckDisjoint("dx", dx, "dy", dy);
  Operation operation{kOp, {dy}, {dx}, {}};
  Cost cost{.bytes_read = static_cast<double>(dx.bytes()),
            .bytes_written = static_cast<double>(dx.bytes())};
  OnGpu gpu{.launches = dx.NumElements() > 0};  // One more a sum.
  const auto add = [&](const char* name, const View& sums) {
    args.CheckDisjoint(name, sums, "dy", dy);
    args.CheckDisjoint(name, sums, "dx", dx);
    operation.writes.push_back(sums);
    const double elements = static_cast<double>(sums.NumElements()) * static_cast<double>(samples);
    cost += Cost{.flops = elements,
                 .bytes_read = static_cast<double>(sums.bytes()),
                 .bytes_written = static_cast<double>(sums.bytes())};
    gpu.extra_bytes += elements * static_cast<double>(SizeOf(dy.dtype));
    ++gpu.launches;
  };
  if (dfirst) {
    args.CheckGradient("dfirst", *dfirst, {cols});
    add("dfirst", *dfirst);
  }
  if (dpositions) {
    args.CheckRank("dpositions", *dpositions, dpositions->dtype, 2);
    args.CheckGradient("dpositions", *dpositions, {all, cols});
    add("dpositions", *dpositions);
  }
  if (dfirst && dpositions) args.CheckDisjoint("dfirst", *dfirst, "dpositions", *dpositions);
  operation.costs = {{cost, gpu}};
  operation.kernels = {OnCpu(JoinTokensBackwardCpu, dy, samples, dx, dfirst, dpositions),
                       OnCuda(JoinTokensBackwardCuda, dy, samples, dx, dfirst, dpositions)};
  stream.Enqueue(std::move(operation));
}

void FirstTokensForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "first_tokens_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("y", y, y.dtype, 2);
  args.CheckRank("x", x, y.dtype, 2);
  args.Check("x", x, y.dtype, {x.shape[0], y.shape[1]});
  RowsOf(args, "x", x, y.shape[0]);
  args.CheckDisjoint("y", y, "x", x);
  const double bytes = static_cast<double>(y.bytes());
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(FirstTokensForwardCpu, x, y), OnCuda(FirstTokensForwardCuda, x, y)}});
}

void FirstTokensBackward(Stream& stream, ConstView dy, View dx) {
  constexpr const char* kOp = "first_tokens_backward";
  const Arguments args(kOp);
  args.CheckDType("dx", dx.dtype, kFloatDTypes);
  args.CheckRank("dx", dx, dx.dtype, 2);
  args.CheckRank("dy", dy, dx.dtype, 2);
  args.Check("dy", dy, dx.dtype, {dy.shape[0], dx.shape[1]});
  RowsOf(args, "dx", dx, dy.shape[0]);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.bytes_read = static_cast<double>(dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue(
      {kOp,
       {dy},
       {dx},
       {cost},
       {OnCpu(FirstTokensBackwardCpu, dy, dx), OnCuda(FirstTokensBackwardCuda, dy, dx)}});
}

}  // namespace fsdp
