#include <algorithm>
#include <cmath>

#include "trainer/ops/batch_norm_backends.h"
#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

constexpr int64_t kCols = 128;  // Channels at a time.

// A channel's norm as y = scale x + shift, and what backward needs.
struct Channels {
  float *scale, *shift, *mean, *r;
};

class AllChannels {
 public:
  AllChannels(int64_t channels, const ConstView& statistics, const ConstView& w, const ConstView& b)
      : rows_(DType::kBFloat16, 6, channels) {
    const float* const mean = statistics.As<float>() + 1;
    const float* const r = mean + channels;
    const float* const weight = ReadFloats(w, 0, channels, rows_[4]);
    const float* const bias = ReadFloats(b, 0, channels, rows_[5]);
    for (int64_t c = 0; c < channels; ++c) {
      rows_[0][c] = weight[c] * r[c];
      rows_[1][c] = std::fma(-mean[c], rows_[0][c], bias[c]);
      rows_[2][c] = mean[c];
      rows_[3][c] = r[c];
    }
  }
  Channels From(int64_t col) {
    return {rows_[0] + col, rows_[1] + col, rows_[2] + col, rows_[3] + col};
  }

 private:
  RowBuffers rows_;
};

int64_t Blocks(const BatchNormShape& s) { return (s.channels + kCols - 1) / kCols; }

// A piece's pixels, as rows of all samples', and channels [col, col + n).
struct Piece {
  int64_t sample, first, rows, col, n;
};
Piece PieceOf(const BatchNormShape& s, int64_t piece, int64_t block) {
  const int64_t sample = piece / s.pieces_of_sample();
  const int64_t pixel = piece % s.pieces_of_sample() * BatchNormShape::kPiece;
  const int64_t col = block * kCols;
  return {sample, sample * s.pixels + pixel,
          std::min<int64_t>(BatchNormShape::kPiece, s.pixels - pixel), col,
          std::min(kCols, s.channels - col)};
}

// Calls body(piece, its index, its two rows of sums) for all.
template <typename Body>
void ForEachPieceOf(ThreadPool& pool, const BatchNormShape& s, const View& workspace,
                    const Body& body) {
  const int64_t blocks = Blocks(s);
  auto* const sums = reinterpret_cast<float*>(workspace.data);
  pool.ParallelFor(s.pieces() * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t index = task / blocks;
      const Piece piece = PieceOf(s, index, task % blocks);
      float* const at = sums + index * 2 * s.channels + piece.col;
      body(piece, at, at + s.channels);
    }
  });
}

// Means of a piece, and sums of squared differences from them.
void MomentsOfPiece(const BatchNormShape& s, const ConstView& x, const Piece& p, float* mean,
                    float* squares) {
  float sums[kCols] = {}, means[kCols], deviations[kCols] = {}, buffer[kCols];
  for (int64_t i = p.first; i < p.first + p.rows; ++i) {
    const float* const row = ReadFloats(x, i * s.channels + p.col, p.n, buffer);
#pragma omp simd
    for (int64_t j = 0; j < p.n; ++j) sums[j] += row[j];
  }
  for (int64_t j = 0; j < p.n; ++j) means[j] = sums[j] / static_cast<float>(p.rows);
  for (int64_t i = p.first; i < p.first + p.rows; ++i) {
    const float* const row = ReadFloats(x, i * s.channels + p.col, p.n, buffer);
#pragma omp simd
    for (int64_t j = 0; j < p.n; ++j) {
      const float d = row[j] - means[j];
      deviations[j] += d * d;
    }
  }
  std::copy_n(means, p.n, mean);
  std::copy_n(deviations, p.n, squares);
}

// Means and squares of more and more pixels.
struct Joined {
  double count = 0, mean = 0, squares = 0;

  void Add(double n, double its_mean, double its_squares) {
    if (n == 0) return;
    const double all = count + n, apart = its_mean - mean;
    mean += apart * n / all;
    squares += its_squares + apart * apart * count * n / all;
    count = all;
  }
};

}  // namespace

void BatchMomentsCpu(ThreadPool& pool, const BatchNormShape& s, const ConstView& x,
                     const ConstView& weights, const View& part, const View& workspace) {
  const float* const weight = weights.As<float>();
  ForEachPieceOf(pool, s, workspace, [&](const Piece& piece, float* mean, float* squares) {
    if (weight[piece.sample] != 0) MomentsOfPiece(s, x, piece, mean, squares);
  });
  float* const to = part.As<float>();
  const auto* const of_pieces = reinterpret_cast<const float*>(workspace.data);
  pool.ParallelFor(s.channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Joined joined;
      for (int64_t i = 0; i < s.pieces(); ++i) {
        const Piece piece = PieceOf(s, i, 0);
        if (weight[piece.sample] == 0) continue;
        const float* const at = of_pieces + i * 2 * s.channels + c;
        joined.Add(static_cast<double>(piece.rows), at[0], at[s.channels]);
      }
      if (c == 0) to[0] = static_cast<float>(joined.count);
      to[1 + c] = static_cast<float>(joined.mean);
      to[1 + s.channels + c] = static_cast<float>(joined.squares);
    }
  });
}

void JoinMomentsCpu(ThreadPool& pool, const ConstView& parts, float eps, const View& statistics,
                    float momentum, const std::optional<View>& mean,
                    const std::optional<View>& variance) {
  const int64_t ranks = parts.shape[0], width = parts.shape[1], channels = width / 2;
  const auto remember = [&](const std::optional<View>& running, int64_t c, double value) {
    if (!running) return;
    float& at = running->As<float>()[c];
    at = static_cast<float>(at + double{momentum} * (value - at));
  };
  pool.ParallelFor(channels, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Joined joined;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const float* const part = parts.As<float>() + rank * width;
        joined.Add(part[0], part[1 + c], part[1 + channels + c]);
      }
      float* const to = statistics.As<float>();
      const bool counts = joined.count > 0;
      const double of_batch = counts ? joined.squares / joined.count : 0;
      if (c == 0) to[0] = static_cast<float>(joined.count);
      to[1 + c] = static_cast<float>(joined.mean);
      to[1 + channels + c] =
          counts ? static_cast<float>(1 / std::sqrt(of_batch + double{eps})) : 0.0f;
      if (!counts) continue;
      remember(mean, c, joined.mean);
      remember(variance, c, joined.squares / std::max(1.0, joined.count - 1));
    }
  });
}

void UseRunningMomentsCpu(ThreadPool&, const ConstView& mean, const ConstView& variance, float eps,
                          const View& statistics) {
  const int64_t channels = mean.shape[0];
  float* const to = statistics.As<float>();
  to[0] = 0;
  for (int64_t c = 0; c < channels; ++c) {
    to[1 + c] = mean.As<float>()[c];
    to[1 + channels + c] =
        static_cast<float>(1 / std::sqrt(double{variance.As<float>()[c]} + double{eps}));
  }
}

void BatchNormForwardCpu(ThreadPool& pool, const BatchNormShape& s, const ConstView& x,
                         const ConstView& statistics, const ConstView& w, const ConstView& b,
                         bool relu, const View& y) {
  pool.ParallelFor(s.rows(), 1, [&](int64_t begin, int64_t end) {
    AllChannels all(s.channels, statistics, w, b);
    FloatPiece in, out;
    for (int64_t row = begin; row < end; ++row) {
      ForEachPiece(x.dtype, 0, s.channels, [&](int64_t col, int64_t n) {
        const Channels c = all.From(col);
        const float* const from = ReadFloats(x, row * s.channels + col, n, in);
        float* const to = FloatsToWrite(y, row * s.channels + col, out);
        if (relu) {  // NaN stays, as in activations.h.
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) {
            const float v = __builtin_fmaf(from[j], c.scale[j], c.shift[j]);
            to[j] = v <= 0 ? 0.0f : v;
          }
        } else {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) {
            to[j] = __builtin_fmaf(from[j], c.scale[j], c.shift[j]);
          }
        }
        WriteFloats(to, n, y, row * s.channels + col);
      });
    }
  });
}

void BatchNormSumsCpu(ThreadPool& pool, const BatchNormShape& s, const ConstView& x,
                      const ConstView& statistics, const ConstView& w, const ConstView& b,
                      bool relu, const ConstView& dy, const std::optional<View>& dw,
                      const std::optional<View>& db, const View& sums, const View& workspace) {
  const int64_t blocks = Blocks(s);
  auto* const of_pieces = reinterpret_cast<float*>(workspace.data);
  pool.ParallelFor(s.pieces() * blocks, 1, [&](int64_t begin, int64_t end) {
    AllChannels all(s.channels, statistics, w, b);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t index = task / blocks;
      const Piece p = PieceOf(s, index, task % blocks);
      const Channels c = all.From(p.col);
      float first[kCols] = {}, second[kCols] = {}, x_buffer[kCols], dy_buffer[kCols];
      for (int64_t i = p.first; i < p.first + p.rows; ++i) {
        const int64_t at = i * s.channels + p.col;
        const float* const in = ReadFloats(x, at, p.n, x_buffer);
        const float* const g = ReadFloats(dy, at, p.n, dy_buffer);
#pragma omp simd
        for (int64_t j = 0; j < p.n; ++j) {
          const bool off = relu && __builtin_fmaf(in[j], c.scale[j], c.shift[j]) <= 0;
          const float d = off ? 0.0f : g[j];
          first[j] += d;
          second[j] += d * ((in[j] - c.mean[j]) * c.r[j]);
        }
      }
      float* const to = of_pieces + index * 2 * s.channels + p.col;
      std::copy_n(first, p.n, to);
      std::copy_n(second, p.n, to + s.channels);
    }
  });
  pool.ParallelFor(2 * s.channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < s.pieces(); ++i) sum += of_pieces[i * 2 * s.channels + c];
      sums.As<float>()[c] = static_cast<float>(sum);
    }
  });
  if (db) AddFloats(sums.As<float>(), s.channels, *db, 0);
  if (dw) AddFloats(sums.As<float>() + s.channels, s.channels, *dw, 0);
}

void BatchNormBackwardCpu(ThreadPool& pool, const BatchNormShape& s, const ConstView& x,
                          const ConstView& weights, const ConstView& statistics, const ConstView& w,
                          const ConstView& b, bool relu, const ConstView& sums, const ConstView& dy,
                          const View& dx) {
  pool.ParallelFor(s.rows(), 1, [&](int64_t begin, int64_t end) {
    AllChannels all(s.channels, statistics, w, b);
    RowBuffers of_sums(DType::kBFloat16, 2, s.channels);
    const float count = *statistics.As<float>(), part = count > 0 ? 1 / count : 0.0f;
    for (int64_t c = 0; c < s.channels; ++c) {
      const Channels at = all.From(c);
      of_sums[0][c] = sums.As<float>()[c] * part;
      of_sums[1][c] = sums.As<float>()[s.channels + c] * part * *at.r;
    }
    FloatPiece x_buffer, dy_buffer, out;
    for (int64_t row = begin; row < end; ++row) {
      const float counts = weights.As<float>()[row / s.pixels] != 0 ? 1.0f : 0.0f;
      ForEachPiece(x.dtype, 0, s.channels, [&](int64_t col, int64_t n) {
        const Channels c = all.From(col);
        const float *const mean = of_sums[0] + col, *const slope = of_sums[1] + col;
        const int64_t at = row * s.channels + col;
        const float* const in = ReadFloats(x, at, n, x_buffer);
        const float* const g = ReadFloats(dy, at, n, dy_buffer);
        float* const to = FloatsToWrite(dx, at, out);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          const bool off = relu && __builtin_fmaf(in[j], c.scale[j], c.shift[j]) <= 0;
          const float d = off ? 0.0f : g[j];
          const float along = mean[j] + (in[j] - c.mean[j]) * slope[j];
          to[j] = c.scale[j] * (d - counts * along);
        }
        WriteFloats(to, n, dx, at);
      });
    }
  });
}

}  // namespace fsdp
