#include "trainer/ops/cpu/head_mixing_cpu.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/attention_rows.h"
#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

constexpr int64_t kPiece = 32;  // Keys of a query that are mixed at a time.
using Piece = float[kMaxMixedHeads][kPiece];

// As floats.
struct Parameters {
  float matrix[kMaxMixedHeads * kMaxMixedHeads], weight[kMaxMixedHeads], bias[kMaxMixedHeads];
  int64_t heads;
  float eps;

  Parameters(const HeadMixing& mixing, int64_t n, bool has_bias) : heads(n), eps(mixing.eps) {
    Read(mixing.matrix, matrix);
    Read(mixing.weight, weight);
    if (has_bias) Read(mixing.bias, bias);
  }
  static void Read(const ConstView& from, float* to) {
    const float* const floats = ReadFloats(from, 0, from.NumElements(), to);
    if (floats != to) std::copy_n(floats, from.NumElements(), to);
  }
};

// A piece of a query's row in all heads, and how it is normalised.
struct Mixed {
  Piece p, x;  // m p; u, normalised.
  float rstd[kPiece];
  int64_t n;

  void Read(const AttentionDims& d, const AttentionInputs& in, const ConstView& probabilities,
            int64_t sample, int64_t query, int64_t key, int64_t count) {
    n = count;
    for (int64_t h = 0; h < d.heads; ++h) {
      const int64_t at = ((sample * d.heads + h) * d.seq + query) * d.keys + key;
      const float* const from = ReadFloats(probabilities, at, n, p[h]);
      if (from != p[h]) std::copy_n(from, n, p[h]);
      DrawnRow(in.dropout, sample, h, query).Drop(key, n, p[h]);
    }
  }
  void Mix(const Parameters& by) {
    const int64_t heads = by.heads;
    for (int64_t g = 0; g < heads; ++g) std::fill_n(x[g], n, 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t g = 0; g < heads; ++g) {
        const float factor = by.matrix[h * heads + g];
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) x[g][j] += factor * p[h][j];
      }
    }
    const float scale = 1.0f / static_cast<float>(heads);
    float mean[kPiece] = {}, squares[kPiece] = {};
    for (int64_t g = 0; g < heads; ++g) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) mean[j] += scale * x[g][j];
    }
    for (int64_t g = 0; g < heads; ++g) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        x[g][j] -= mean[j];
        squares[j] += x[g][j] * x[g][j];
      }
    }
    for (int64_t j = 0; j < n; ++j) rstd[j] = 1.0f / std::sqrt(squares[j] * scale + by.eps);
    for (int64_t g = 0; g < heads; ++g) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) x[g][j] *= rstd[j];
    }
  }
};

// Calls body(where the piece begins in each head's [seq, keys], key, n) for a row of queries.
template <typename Body>
void ForEachPieceOf(int64_t keys, const Body& body) {
  for (int64_t key = 0; key < keys; key += kPiece) body(key, std::min(kPiece, keys - key));
}

// The gradients of a part's rows.
struct PartSums {
  float *matrix, *weight, *bias;

  PartSums(float* sums, int64_t part, int64_t heads)
      : matrix(sums + part * HeadMixingSums(heads)),
        weight(matrix + heads * heads),
        bias(weight + heads) {
    std::fill_n(matrix, HeadMixingSums(heads), 0.0f);
  }
};

// dw, in `dw`, becomes dp.
void Backward(const Parameters& by, const Mixed& mixed, Piece& dw, const PartSums& sums) {
  const int64_t heads = by.heads, n = mixed.n;
  const float scale = 1.0f / static_cast<float>(heads);
  Piece du;
  float mean[kPiece] = {}, dot[kPiece] = {};
  for (int64_t g = 0; g < heads; ++g) {
    float of_weight = 0, of_bias = 0;
    for (int64_t j = 0; j < n; ++j) {
      const float xhat = mixed.x[g][j], weighed = by.weight[g] * dw[g][j];
      of_weight += dw[g][j] * xhat;
      of_bias += dw[g][j];
      mean[j] += scale * weighed;
      dot[j] += scale * weighed * xhat;
    }
    sums.weight[g] += of_weight;
    sums.bias[g] += of_bias;
  }
  for (int64_t g = 0; g < heads; ++g) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      du[g][j] = mixed.rstd[j] * (by.weight[g] * dw[g][j] - mean[j] - mixed.x[g][j] * dot[j]);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    std::fill_n(dw[h], n, 0.0f);
    for (int64_t g = 0; g < heads; ++g) {
      const float factor = by.matrix[h * heads + g];
      float of_matrix = 0;
      for (int64_t j = 0; j < n; ++j) {
        of_matrix += mixed.p[h][j] * du[g][j];
        dw[h][j] += factor * du[g][j];
      }
      sums.matrix[h * heads + g] += of_matrix;
    }
  }
}

}  // namespace

void MixHeadsCpu(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                 const HeadMixing& mixing, const ConstView& probabilities, const View& weights) {
  pool.ParallelFor(d.batch * d.seq, 1, [&](int64_t begin, int64_t end) {
    const Parameters by(mixing, d.heads, /*has_bias=*/true);
    Mixed mixed;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / d.seq, i = row % d.seq;
      const int64_t seen = SeenKeys(d, in, b, i), size = SizeOf(weights.dtype);
      for (int64_t h = 0; h < d.heads; ++h) {
        const int64_t at = ((b * d.heads + h) * d.seq + i) * d.keys + seen;
        std::fill_n(weights.data + at * size, (d.keys - seen) * size, std::byte{0});
      }
      ForEachPieceOf(seen, [&](int64_t key, int64_t n) {
        mixed.Read(d, in, probabilities, b, i, key, n);
        mixed.Mix(by);
        for (int64_t g = 0; g < d.heads; ++g) {
          const int64_t at = ((b * d.heads + g) * d.seq + i) * d.keys + key;
          float buffer[kPiece];
          float* const to = FloatsToWrite(weights, at, buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[j] = mixed.x[g][j] * by.weight[g] + by.bias[g];
          WriteFloats(to, n, weights, at);
        }
      });
    }
  });
}

void MixHeadsBackwardCpu(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                         const HeadMixing& mixing, const ConstView& probabilities, const View& dw,
                         float* sums, const HeadMixingGradients& gradients) {
  const int64_t rows = d.batch * d.seq, parts = HeadMixingParts(rows);
  if (rows * d.heads * d.keys == 0) return;
  pool.ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    const Parameters by(mixing, d.heads, /*has_bias=*/false);
    Mixed mixed;
    Piece piece;
    for (int64_t part = begin; part < end; ++part) {
      const PartSums of_part(sums, part, d.heads);
      for (int64_t row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
        const int64_t b = row / d.seq, i = row % d.seq;
        ForEachPieceOf(SeenKeys(d, in, b, i), [&](int64_t key, int64_t n) {
          const auto at = [&](int64_t h) { return ((b * d.heads + h) * d.seq + i) * d.keys + key; };
          mixed.Read(d, in, probabilities, b, i, key, n);
          mixed.Mix(by);
          for (int64_t g = 0; g < d.heads; ++g) {
            const float* const from = ReadFloats(dw, at(g), n, piece[g]);
            if (from != piece[g]) std::copy_n(from, n, piece[g]);
          }
          Backward(by, mixed, piece, of_part);
          for (int64_t h = 0; h < d.heads; ++h) {
            DrawnRow(in.dropout, b, h, i).Drop(key, n, piece[h]);
            float* const to = FloatsToWrite(dw, at(h), piece[h]);
            if (to != piece[h]) std::copy_n(piece[h], n, to);
            WriteFloats(to, n, dw, at(h));
          }
        });
      }
    }
  });
  const int64_t size = HeadMixingSums(d.heads);
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t i = 0; i < size; ++i) sums[i] += sums[part * size + i];
  }
  const int64_t heads = d.heads;
  if (gradients.matrix) AddFloats(sums, heads * heads, *gradients.matrix, 0);
  if (gradients.weight) AddFloats(sums + heads * heads, heads, *gradients.weight, 0);
  if (gradients.bias) AddFloats(sums + heads * heads + heads, heads, *gradients.bias, 0);
}

}  // namespace fsdp
