#include "trainer/ops/cpu/image_tokens_cpu.h"

#include <cstring>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

// Elements [begin, begin + n) of `from`, bit for bit, become those of `to` from `at` on.
void CopyElements(const ConstView& from, int64_t begin, int64_t n, const View& to, int64_t at) {
  const int64_t size = SizeOf(to.dtype);
  std::memcpy(to.data + at * size, from.data + begin * size, static_cast<size_t>(n * size));
}

}  // namespace

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

}  // namespace fsdp
