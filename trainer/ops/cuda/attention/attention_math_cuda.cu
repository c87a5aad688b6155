// Formulas: attention_math.h. Products use tiles of 64 rows, and 64 columns of heads at a time. A
// warp has a row of scores.
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/attention/attention_buckets.h"
#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/attention_mask.h"
#include "trainer/ops/cuda/attention/attention_products.h"
#include "trainer/ops/cuda/attention/attention_scores.h"
#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/attention/heads_cuda.h"
#include "trainer/ops/cuda/block_sum.h"

namespace fsdp {
namespace {

constexpr int kTile = 64, kStep = 32, kColumns = 64;
constexpr int kThreads = kTile / 16 * kWarp;
constexpr AttentionKind kAny = AttentionKind::kAny;

template <typename T>
constexpr int kTileElements = kTile* kLd<T, kColumns>;

// Columns of a head's rows from `first` on: those of tiles.
template <typename T>
__device__ HeadRowsCuda<T> ColumnsFrom(HeadRowsCuda<T> rows, int first) {
  rows.data += first;
  rows.head_dim -= first;
  return rows;
}

// scores[i,j] = scale a[i] . b[j] of all keys that there are to be seen.
template <typename T>
constexpr size_t kDotsBytes = sizeof(T) * 2 * kTileElements<T>;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    AttentionDotsKernel(AttentionCall call, HeadsCuda<const T> a, HeadsCuda<const T> b, float scale,
                        ScoresCuda<T> scores) {
  const AttentionPlace at(call.batch, call.heads);
  const int across = static_cast<int>(CeilDiv(call.keys, kTile));
  const int query = at.tile / across * kTile, key = at.tile % across * kTile;
  const HeadRowsCuda<const T> left = a.Rows(at.sample, at.head);
  const HeadRowsCuda<const T> right = SeenRows<kAny>(call, b, at.sample, at.head / call.group);
  if (key >= right.rows) return;
  T* const left_tile = DynamicShared<T>();
  T* const right_tile = left_tile + kTileElements<T>;
  Fragments<1, kTile / 8> sums = {};
  for (int column = 0; column < left.head_dim; column += kColumns) {
    if (column > 0) __syncthreads();  // The last tiles are done with.
    LoadTile<kColumns, kTile>(left_tile, ColumnsFrom(left, column), query);
    LoadTile<kColumns, kTile>(right_tile, ColumnsFrom(right, column), key);
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    AddDots<kColumns>(left_tile + Warp() * 16 * kLd<T, kColumns>, right_tile, sums);
  }
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = query + Warp() * 16 + RowOf(0, e), j = key + ColumnOf(n, e);
      if (i < call.seq && j < right.rows) {
        scores.Row(at.sample, at.head, i)[j] = FromFloat<T>(scale * sums[0][n][e]);
      }
    }
  }
}

// A tile of scores, `rows` x `columns` of them, zero beyond the last.
template <typename T, int rows, int columns>
struct ScoresTile {
  static constexpr int kStride = columns + kPack<T>, kElements = rows * kStride;

  static __device__ void Load(const ScoresCuda<const T>& from, int sample, int head, int query,
                              int key, int seen, T* tile) {
    for (int at = static_cast<int>(threadIdx.x); at < rows * columns; at += kThreads) {
      const int i = query + at / columns, j = key + at % columns;
      tile[at / columns * kStride + at % columns] =
          i < from.seq && j < seen ? from.Row(sample, head, i)[j] : FromFloat<T>(0.0f);
    }
  }
};

template <typename T>
constexpr size_t kSumsBytes = sizeof(T) * (ScoresTile<T, kTile, kStep>::kElements +
                                           kStep * kLd<T, kColumns> + kTileElements<T>);

// y[i] = scale sum_j weights[i,j] x[j].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AttentionKeySumsKernel(AttentionCall call, ScoresCuda<const T> weights, HeadsCuda<const T> x,
                           float scale, HeadsCuda<T> y) {
  using Weights = ScoresTile<T, kTile, kStep>;
  const AttentionPlace at(call.batch, call.heads);
  const int parts = static_cast<int>(CeilDiv(y.head_dim, kColumns));
  const int query = at.tile / parts * kTile, column = at.tile % parts * kColumns;
  const HeadRowsCuda<const T> rows =
      ColumnsFrom(SeenRows<kAny>(call, x, at.sample, at.head / call.group), column);
  T* const weights_tile = DynamicShared<T>();
  T* const x_tile = weights_tile + Weights::kElements;
  T* const y_tile = x_tile + kStep * kLd<T, kColumns>;
  Fragments<1, kColumns / 8> sums = {};
  for (int key = 0; key < rows.rows; key += kStep) {
    if (key > 0) __syncthreads();  // The last tiles are done with.
    Weights::Load(weights, at.sample, at.head, query, key, rows.rows, weights_tile);
    LoadTile<kColumns, kStep>(x_tile, rows, key);
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    Fragments<1, kStep / 8> w;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        w[0][n][e] =
            ToFloat(weights_tile[(Warp() * 16 + RowOf(0, e)) * Weights::kStride + ColumnOf(n, e)]);
      }
    }
    AddRows<kColumns>(w, x_tile, sums);
  }
  const float scales[1][2] = {{scale, scale}};
  RoundInto<kColumns>(y_tile + Warp() * 16 * kLd<T, kColumns>, sums, scales);
  __syncthreads();
  StoreTile<kColumns, kTile>(y_tile, ColumnsFrom(y.Rows(at.sample, at.head), column), query);
}

// y[j] = scale sum of weights[i,j] x[i] over the queries i of all heads of the group.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionQuerySumsKernel(AttentionCall call, ScoresCuda<const T> weights, HeadsCuda<const T> x,
                             float scale, HeadsCuda<T> y) {
  using Weights = ScoresTile<T, kStep, kTile>;
  const AttentionPlace at(call.batch, call.heads / call.group);
  const int parts = static_cast<int>(CeilDiv(y.head_dim, kColumns));
  const int key = at.tile / parts * kTile, column = at.tile % parts * kColumns;
  const int seen = call.Seen<kAny>(at.sample);
  T* const weights_tile = DynamicShared<T>();
  T* const x_tile = weights_tile + ScoresTile<T, kTile, kStep>::kElements;
  T* const y_tile = x_tile + kStep * kLd<T, kColumns>;
  static_assert(Weights::kElements <= ScoresTile<T, kTile, kStep>::kElements);
  Fragments<1, kColumns / 8> sums = {};
  const int steps = key < seen ? static_cast<int>(CeilDiv(call.seq, kStep)) : 0;
  for (int step = 0; step < steps * call.group; ++step) {
    if (step > 0) __syncthreads();  // The last tiles are done with.
    const int head = at.head * call.group + step / steps, query = step % steps * kStep;
    Weights::Load(weights, at.sample, head, query, key, seen, weights_tile);
    LoadTile<kColumns, kStep>(x_tile, ColumnsFrom(x.Rows(at.sample, head), column), query);
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    Fragments<1, kStep / 8> w;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        w[0][n][e] =
            ToFloat(weights_tile[ColumnOf(n, e) * Weights::kStride + Warp() * 16 + RowOf(0, e)]);
      }
    }
    AddRows<kColumns>(w, x_tile, sums);
  }
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // Whatever a query holds.
      if (key + Warp() * 16 + RowOf(0, e) >= seen) sums[0][n][e] = 0;
    }
  }
  const float scales[1][2] = {{scale, scale}};
  RoundInto<kColumns>(y_tile + Warp() * 16 * kLd<T, kColumns>, sums, scales);
  __syncthreads();
  StoreTile<kColumns, kTile>(y_tile, ColumnsFrom(y.Rows(at.sample, at.head), column), key);
}

// The row of scores that a warp has.
constexpr int kRowThreads = 128;
struct ScoresRow {
  bool any;
  int sample, head, query;
  __device__ explicit ScoresRow(const AttentionCall& call) {
    const int64_t row = int64_t{blockIdx.x} * (kRowThreads / kWarp) + Warp();
    any = row < static_cast<int64_t>(call.batch) * call.heads * call.seq;
    query = static_cast<int>(row % call.seq);
    head = static_cast<int>(row / call.seq % call.heads);
    sample = static_cast<int>(row / call.seq / call.heads);
  }
};
dim3 RowsGrid(const AttentionDims& dims) {
  return dim3(
      static_cast<unsigned>(CeilDiv(dims.batch * dims.heads * dims.seq, kRowThreads / kWarp)));
}

// A score that fp16 does not hold counts as the largest that it does.
template <typename T>
__device__ inline float ScoreOf(T stored) {
  const float score = ToFloat(stored);
  if constexpr (!std::is_same_v<T, __half>) return score;
  return score > kMostFp16 ? kMostFp16 : score < -kMostFp16 ? -kMostFp16 : score;
}

// Scores become probabilities. `dropped`: m p goes here; null: nowhere.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    AttentionSoftmaxKernel(AttentionCall call, BiasCuda<T> bias, ScoresCuda<T> scores,
                           ScoresCuda<T> dropped) {
  const ScoresRow at(call);
  if (!at.any) return;
  const SeenKeysCuda seen(call, at.sample, at.query);
  const AttentionDraws draws = call.DrawsOf(at.sample, at.head);
  T* const row = scores.Row(at.sample, at.head, at.query);
  // In powers of two, over 2^shift.
  const auto power = [&](int key, float shift) {
    const float biased = bias.table == nullptr ? 0.0f : bias.At(at.head, at.query, key);
    return __fmaf_rn(ScoreOf(row[key]), kLog2E, biased - shift);
  };
  float top = -INFINITY;
  seen.ForEach(draws, /*drops=*/false, at.query,
               [&](int key, float) { top = fmaxf(top, power(key, 0)); });
  top = WarpMax(top);
  float sum = 0;
  seen.ForEach(draws, /*drops=*/false, at.query,
               [&](int key, float) { sum += exp2f(power(key, top)); });
  const float factor = 1 / WarpSum(sum);
  const bool drops = dropped.data != nullptr;
  T* const dropped_row = drops ? dropped.Row(at.sample, at.head, at.query) : nullptr;
  seen.ForEach(draws, drops, at.query, [&](int key, float m) {
    const T p = FromFloat<T>(factor * exp2f(power(key, top)));
    row[key] = p;
    if (drops) dropped_row[key] = FromFloat<T>(m * ToFloat(p));
  });
  seen.ZeroOthers(row, call.keys);
  if (drops) seen.ZeroOthers(dropped_row, call.keys);
}

// dp, or dw where it `drops`, becomes ds.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    AttentionSoftmaxBackwardKernel(AttentionCall call, ScoresCuda<const T> probabilities,
                                   bool drops, ScoresCuda<T> ds) {
  const ScoresRow at(call);
  if (!at.any) return;
  const SeenKeysCuda seen(call, at.sample, at.query);
  const AttentionDraws draws = call.DrawsOf(at.sample, at.head);
  const T* const p = probabilities.Row(at.sample, at.head, at.query);
  T* const row = ds.Row(at.sample, at.head, at.query);
  float dot = 0;
  seen.ForEach(draws, drops, at.query, [&](int key, float m) {
    dot = __fmaf_rn(ToFloat(p[key]), m * ToFloat(row[key]), dot);
  });
  dot = WarpSum(dot);
  seen.ForEach(draws, drops, at.query, [&](int key, float m) {
    row[key] = FromFloat<T>(ToFloat(p[key]) * (m * ToFloat(row[key]) - dot));
  });
  seen.ZeroOthers(row, call.keys);
}

// Sums of ds by distance: a thread has one, of one sample's head.
constexpr int kSumThreads = 128;
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    AttentionDistanceSumsKernel(AttentionCall call, ScoresCuda<const T> ds, int distances,
                                float* sums) {
  const AttentionPlace at(call.batch, call.heads);
  const int distance = at.tile * kSumThreads + static_cast<int>(threadIdx.x);
  if (distance >= distances) return;
  const int shift = distance - call.seq + 1;  // From a query to its key.
  float sum = 0;
  for (int i = max(0, -shift); i < min(call.seq, call.keys - shift); ++i) {
    sum += ToFloat(ds.Row(at.sample, at.head, i)[i + shift]);
  }
  sums[(static_cast<int64_t>(at.sample) * call.heads + at.head) * distances + distance] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kBucketThreads)
    AttentionMathBucketsKernel(AttentionCall call, BiasCuda<T> bias, const float* sums, T* dbias) {
  SumBucket(bias, sums, call.batch, call.heads, dbias);
}

// The kernels of one call.
template <typename T>
struct MathCuda {
  CudaStreamHandle stream;
  const AttentionDims& dims;
  AttentionCall call;

  void Dots(const HeadsCuda<const T>& a, const HeadsCuda<const T>& b, float scale,
            const ScoresCuda<T>& scores) const {
    const int64_t tiles = CeilDiv(dims.seq, kTile) * CeilDiv(dims.keys, kTile);
    Launch<AttentionDotsKernel<T>>(stream, AttentionGrid(dims, dims.heads, tiles, 1),
                                   dim3(kThreads), kDotsBytes<T>, call, a, b, scale, scores);
  }
  int64_t Tiles(int64_t rows) const {
    return CeilDiv(rows, kTile) * CeilDiv(dims.head_dim, kColumns);
  }
  void KeySums(const ScoresCuda<const T>& weights, const HeadsCuda<const T>& x, float scale,
               const HeadsCuda<T>& y) const {
    Launch<AttentionKeySumsKernel<T>>(stream, AttentionGrid(dims, dims.heads, Tiles(dims.seq), 1),
                                      dim3(kThreads), kSumsBytes<T>, call, weights, x, scale, y);
  }
  void QuerySums(const ScoresCuda<const T>& weights, const HeadsCuda<const T>& x, float scale,
                 const HeadsCuda<T>& y) const {
    Launch<AttentionQuerySumsKernel<T>>(stream,
                                        AttentionGrid(dims, dims.kv_heads, Tiles(dims.keys), 1),
                                        dim3(kThreads), kSumsBytes<T>, call, weights, x, scale, y);
  }
};

}  // namespace

void AttentionMathForwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                              const AttentionInputs& in, const HeadMixing& mixing,
                              const View& probabilities, const View& weights, const View& out) {
  if (dims.heads == 0) return;
  const bool mixes = mixing.Mixes(), apart = mixes || in.dropout.rate > 0;
  ForFloat(out.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const MathCuda<T> math{stream, dims, AttentionCallOf(dims, in)};
    const ScoresCuda<T> p = ScoresOf<T>(probabilities);
    const View& summed = apart ? weights : probabilities;
    const bool any = dims.batch * dims.seq * dims.keys > 0;
    if (any) {
      math.Dots(HeadsOf<T>(in.q), HeadsOf<T>(in.k), in.Scale(), p);
      Launch<AttentionSoftmaxKernel<T>>(stream, RowsGrid(dims), dim3(kRowThreads), 0, math.call,
                                        BiasOf<T>(dims, in.bias), p,
                                        apart && !mixes ? ScoresOf<T>(weights) : ScoresCuda<T>{});
      if (mixes) MixHeadsCuda(stream, dims, in, mixing, probabilities, weights);
    }
    math.KeySums(ScoresOf<T>(ConstView(summed)), HeadsOf<T>(in.v), 1, HeadsOf<T>(out));
  });
}

void AttentionMathBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                               const AttentionInputs& in, const HeadMixing& mixing,
                               const ConstView& probabilities, const ConstView& weights,
                               const ConstView& dout, const AttentionGradients& gradients,
                               const HeadMixingGradients& mixing_gradients,
                               const AttentionMathWorkspace& workspace) {
  if (dims.heads == 0) return;
  const bool mixes = mixing.Mixes(), drops = in.dropout.rate > 0;
  ForFloat(dout.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const MathCuda<T> math{stream, dims, AttentionCallOf(dims, in)};
    const ScoresCuda<const T> p = ScoresOf<T>(probabilities);
    const ScoresCuda<const T> w = mixes || drops ? ScoresOf<T>(weights) : p;
    const ScoresCuda<T> ds = ScoresOf<T>(workspace.ds);
    const ScoresCuda<const T> made = ScoresOf<T>(ConstView(workspace.ds));
    const HeadsCuda<const T> dy = HeadsOf<T>(dout);
    if (dims.batch * dims.seq * dims.keys > 0) {
      math.Dots(dy, HeadsOf<T>(in.v), 1, ds);
      if (mixes) {
        MixHeadsBackwardCuda(stream, dims, in, mixing, probabilities, workspace.ds,
                             workspace.mixing_sums, mixing_gradients);
      }
      Launch<AttentionSoftmaxBackwardKernel<T>>(stream, RowsGrid(dims), dim3(kRowThreads), 0,
                                                math.call, p, drops && !mixes, ds);
    }
    math.KeySums(made, HeadsOf<T>(in.k), in.Scale(), HeadsOf<T>(gradients.q));
    math.QuerySums(made, HeadsOf<T>(in.q), in.Scale(), HeadsOf<T>(gradients.k));
    math.QuerySums(w, dy, 1, HeadsOf<T>(gradients.v));
    if (!gradients.HasBias()) return;
    float* const sums = workspace.bias_sums.template As<float>();
    Launch<AttentionDistanceSumsKernel<T>>(
        stream, AttentionGrid(dims, dims.heads, dims.distances(), kSumThreads), dim3(kSumThreads),
        0, math.call, made, static_cast<int>(dims.distances()), sums);
    Launch<AttentionMathBucketsKernel<T>>(
        stream, dim3(static_cast<unsigned>(gradients.bias.NumElements())), dim3(kBucketThreads), 0,
        math.call, BiasOf<T>(dims, in.bias), sums, reinterpret_cast<T*>(gradients.bias.data));
  });
}

}  // namespace fsdp
