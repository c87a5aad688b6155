#include <algorithm>
#include <cmath>
#include <cstring>

#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cpu/attention/attention_rows.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/cpu/head_rows.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// The mixing of heads.

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

// dw becomes dp, in place. `sums`: the sums of all parts.
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

// Scores, and products with probabilities.

// Rows [0, seq) of [batch, heads, seq, keys].
int64_t ScoresOf(const AttentionDims& d, int64_t sample, int64_t head) {
  return (sample * d.heads + head) * d.seq * d.keys;
}

template <typename AnyView>
BasicHeads<AnyView> AllHeads(const AttentionDims& dims, const AnyView& out) {
  return {out, 0, dims.heads};
}

GemmOperand RowsOf(const ConstHeads& heads, int64_t sample, int64_t head, bool transposed = false) {
  return Factor(heads.tensor, HeadBegin(heads, sample, head), heads.stride(), transposed);
}

void Zero(const View& x, int64_t begin, int64_t n) {
  const int64_t size = SizeOf(x.dtype);
  std::memset(x.data + begin * size, 0, static_cast<size_t>(n * size));
}

template <typename Body>
void ForEachHead(const AttentionDims& d, const Body& body) {
  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t h = 0; h < d.heads; ++h) body(b, h);
  }
}

// scores[i,j] = scale a[i] . b[j] of all keys that there are to be seen.
void DotProducts(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                 const ConstHeads& a, const ConstHeads& b, float scale, const View& scores) {
  ForEachHead(d, [&](int64_t sample, int64_t h) {
    Gemm(pool, d.seq, KeysOf(d, in, sample), d.head_dim, RowsOf(a, sample, h),
         RowsOf(b, sample, h / d.group(), /*transposed=*/true),
         Result(scores, ScoresOf(d, sample, h), d.keys), {.alpha = scale});
  });
}

// y[i] = scale sum_j weights[i,j] x[j].
void SumsOverKeys(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                  const ConstView& weights, const ConstHeads& x, float scale, const Heads& y) {
  ForEachHead(d, [&](int64_t sample, int64_t h) {
    const int64_t keys = KeysOf(d, in, sample), begin = HeadBegin(y, sample, h);
    for (int64_t i = 0; keys == 0 && i < d.seq; ++i)
      Zero(y.tensor, begin + i * y.stride(), d.head_dim);
    if (keys == 0) return;
    Gemm(pool, d.seq, d.head_dim, keys, Factor(weights, ScoresOf(d, sample, h), d.keys),
         RowsOf(x, sample, h / d.group()), Result(y.tensor, begin, y.stride()), {.alpha = scale});
  });
}

// y[j] = scale sum of weights[i,j] x[i] over the queries i of all heads of the group.
void SumsOverQueries(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                     const ConstView& weights, const ConstHeads& x, float scale, const Heads& y) {
  if (d.heads == 0) return;
  RowBuffers buffer(y.tensor.dtype, 1, d.keys * d.head_dim);
  for (int64_t b = 0; b < d.batch; ++b) {
    const int64_t keys = d.seq > 0 ? KeysOf(d, in, b) : 0;
    for (int64_t kv_head = 0; kv_head < d.kv_heads; ++kv_head) {
      const HeadRows<float> to = HeadToWrite(y, b, kv_head, buffer[0]);
      for (int64_t g = 0; g < d.group(); ++g) {
        const int64_t h = kv_head * d.group() + g;
        Gemm(pool, keys, d.head_dim, d.seq, Transposed(weights, ScoresOf(d, b, h), d.keys),
             RowsOf(x, b, h), {to.data, to.stride}, {.alpha = scale, .beta = g == 0 ? 0.0f : 1.0f});
      }
      for (int64_t j = keys; j < d.keys; ++j)
        std::fill_n(to.data + j * to.stride, d.head_dim, 0.0f);
      WriteHead(to, d.keys, y, b, kv_head);
    }
  }
}

// Calls body(sample, head, query, where its row begins in [batch, heads, seq, keys]).
template <typename Body>
void ForEachRow(ThreadPool& pool, const AttentionDims& d, const Body& body) {
  pool.ParallelFor(d.batch * d.heads * d.seq, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row / d.seq / d.heads, row / d.seq % d.heads, row % d.seq, row * d.keys);
    }
  });
}

void AddBias(const AttentionDims& d, const AttentionBias& bias, int64_t head, int64_t query,
             int64_t keys, float* scores) {
  const int64_t columns = bias.table.shape[1];
  RowBuffers buffer(bias.table.dtype, 1, columns);
  const float* const table = ReadFloats(bias.table, head * columns, columns, buffer[0]);
  const int32_t* const buckets = bias.buckets.As<int32_t>() + (d.seq - 1 - query);
  for (int64_t j = 0; j < keys; ++j) scores[j] += table[buckets[j]];
}

void Softmax(float* x, int64_t n) {
  float max = -INFINITY;
  for (int64_t j = 0; j < n; ++j) max = std::max(max, x[j]);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) {
    x[j] = Exp(x[j] - max);
    sum += x[j];
  }
  const float factor = 1 / sum;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) x[j] *= factor;
}

// Zeroes the elements of a row behind the first `seen`.
void ZeroOthers(const View& x, int64_t row, int64_t keys, int64_t seen) {
  Zero(x, row + seen, keys - seen);
}

// Scores become probabilities. `dropped`: m p goes here, or null.
void SoftmaxRows(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                 const View& scores, const View* dropped) {
  ForEachRow(pool, d, [&](int64_t b, int64_t h, int64_t i, int64_t row) {
    const int64_t n = SeenKeys(d, in, b, i);
    RowBuffers buffers(scores.dtype, 1, d.keys);
    float* const x = FloatsToChange(scores, row, n, buffers[0]);
    if (scores.dtype == DType::kFloat16) {
      for (int64_t j = 0; j < n; ++j) x[j] = std::clamp(x[j], -kMostFp16, kMostFp16);
    }
    if (d.bias) AddBias(d, in.bias, h, i, n, x);
    Softmax(x, n);
    WriteFloats(x, n, scores, row);
    ZeroOthers(scores, row, d.keys, n);
    if (dropped == nullptr) return;
    float* const y = FloatsToWrite(*dropped, row, buffers[0]);
    std::copy_n(ReadFloats(scores, row, n, buffers[0]), n, y);  // As they were rounded.
    DrawnRow(in.dropout, b, h, i).Drop(0, n, y);
    WriteFloats(y, n, *dropped, row);
    ZeroOthers(*dropped, row, d.keys, n);
  });
}

// dp, or dw where it `drops`, becomes ds.
void SoftmaxBackwardRows(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                         const ConstView& probabilities, bool drops, const View& ds) {
  ForEachRow(pool, d, [&](int64_t b, int64_t h, int64_t i, int64_t row) {
    const int64_t n = SeenKeys(d, in, b, i);
    RowBuffers buffers(ds.dtype, 2, d.keys);
    const float* const p = ReadFloats(probabilities, row, n, buffers[0]);
    float* const dp = FloatsToChange(ds, row, n, buffers[1]);
    if (drops) DrawnRow(in.dropout, b, h, i).Drop(0, n, dp);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < n; ++j) dot += p[j] * dp[j];
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - dot);
    WriteFloats(dp, n, ds, row);
    ZeroOthers(ds, row, d.keys, n);
  });
}

// Adds up queries in order, then samples, then the distances of each bucket.
void BiasGradient(ThreadPool& pool, const AttentionDims& d, const ConstView& bucket_view,
                  const ConstView& ds, float* sums, const View& to) {
  const int32_t* const buckets = bucket_view.As<int32_t>();
  const int64_t columns = to.shape[1], n = d.distances();
  pool.ParallelFor(d.heads, 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(ds.dtype, 1, std::max(d.keys, columns));
    for (int64_t h = begin; h < end; ++h) {
      float* const all = sums + h * d.batch * n;
      std::fill_n(all, d.batch * n, 0.0f);
      for (int64_t b = 0; b < d.batch; ++b) {
        for (int64_t i = 0; i < d.seq; ++i) {
          const float* const row =
              ReadFloats(ds, ScoresOf(d, b, h) + i * d.keys, d.keys, buffers[0]);
          float* const by_distance = all + b * n + d.seq - 1 - i;
          for (int64_t j = 0; j < d.keys; ++j) by_distance[j] += row[j];
        }
        for (int64_t x = 0; b > 0 && x < n; ++x) all[x] += all[b * n + x];
      }
      float* const table = FloatsToWrite(to, h * columns, buffers[0]);
      std::fill_n(table, columns, 0.0f);
      for (int64_t x = 0; x < n; ++x) table[buckets[x]] += all[x];
      WriteFloats(table, columns, to, h * columns);
    }
  });
}

}  // namespace

void AttentionMathForwardCpu(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                             const HeadMixing& mixing, const View& probabilities,
                             const View& weights, const View& out) {
  const bool mixes = mixing.Mixes(), apart = mixes || in.dropout.rate > 0;
  DotProducts(pool, d, in, in.q, in.k, in.Scale(), probabilities);
  SoftmaxRows(pool, d, in, probabilities, apart && !mixes ? &weights : nullptr);
  if (mixes) MixHeadsCpu(pool, d, in, mixing, probabilities, weights);
  SumsOverKeys(pool, d, in, apart ? weights : probabilities, in.v, 1, AllHeads(d, out));
}

void AttentionMathBackwardCpu(ThreadPool& pool, const AttentionDims& d, const AttentionInputs& in,
                              const HeadMixing& mixing, const ConstView& probabilities,
                              const ConstView& weights, const ConstView& dout,
                              const AttentionGradients& gradients,
                              const HeadMixingGradients& mixing_gradients,
                              const AttentionMathWorkspace& workspace) {
  const bool mixes = mixing.Mixes(), apart = mixes || in.dropout.rate > 0;
  const ConstHeads dy = AllHeads(d, dout);
  const View& ds = workspace.ds;
  DotProducts(pool, d, in, dy, in.v, 1, ds);
  if (mixes) {
    MixHeadsBackwardCpu(pool, d, in, mixing, probabilities, ds, workspace.mixing_sums.As<float>(),
                        mixing_gradients);
  }
  SoftmaxBackwardRows(pool, d, in, probabilities, in.dropout.rate > 0 && !mixes, ds);
  SumsOverKeys(pool, d, in, ds, in.k, in.Scale(), gradients.q);
  SumsOverQueries(pool, d, in, ds, in.q, in.Scale(), gradients.k);
  SumsOverQueries(pool, d, in, apart ? weights : probabilities, dy, 1, gradients.v);
  if (gradients.HasBias()) {
    BiasGradient(pool, d, in.bias.buckets, ds, workspace.bias_sums.As<float>(), gradients.bias);
  }
}

}  // namespace fsdp
