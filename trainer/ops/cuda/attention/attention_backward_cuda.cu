// Formulas: attention.h. One block adds up dk and dv of a tile of keys, over the queries of all
// heads of the group. Another one adds up dq of a tile of queries, over the keys. So p and ds are
// computed twice, but no two blocks add to the same element, and no sum waits in memory. The
// gradient of a bias is added up by distance first, then by bucket. The next tiles are loaded while
// a block computes.
// Tests: tests/trainer/ops/attention_test.cc
#include <climits>
#include <cmath>

#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/attention/attention_buckets.h"
#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/attention_mask.h"
#include "trainer/ops/cuda/attention/attention_products.h"
#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/attention/heads_cuda.h"

namespace fsdp {
namespace {

// Rows of the block's own tiles, which are two (k and v, or q and dout), and of the two that it
// walks over.
template <typename T, int D>
struct BackwardTiles {
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(T));
  static constexpr int kOwn = kRowBytes <= 512 ? 64 : 32;
  static constexpr int kOther = kRowBytes <= 128 ? 64 : kRowBytes <= 512 ? 32 : 16;
  // Warps that share 16 keys have a part of the columns of dk and dv each, for want of registers.
  static constexpr int kParts = D > 128 ? 2 : 1;
  static constexpr int kQueryThreads = kOwn / 16 * kWarp, kKeyThreads = kQueryThreads * kParts;
  static constexpr int kOwnElements = kOwn * kLd<T, D>, kElements = kOther * kLd<T, D>;
  static constexpr size_t kTileBytes = sizeof(T) * (2 * kOwnElements + 4 * kElements);
  static constexpr size_t kKeyBytes = kTileBytes + 2 * 3 * sizeof(float) * kOther;
};

template <typename T>
struct BackwardArgs {
  AttentionCall call;
  HeadsCuda<const T> q, k, v, dout;
  const float *lse, *dot;  // dot: dout . out.
  HeadsCuda<T> dq, dk, dv;
  BiasCuda<T> bias;
  float* bias_sums;  // [batch, heads, distances]: sums of ds.
  T* dbias;          // [heads, buckets]
};

// dot[b, h, i] = dout . out of [b, i, h]. Eight lanes a row.
constexpr int kDotLanes = 8, kDotThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kDotThreads)
    AttentionDotKernel(AttentionCall call, HeadsCuda<const T> out, HeadsCuda<const T> dout,
                       float* dot) {
  const int64_t row = (int64_t{blockIdx.x} * kDotThreads + threadIdx.x) / kDotLanes;
  const bool inside = row < static_cast<int64_t>(call.batch) * call.seq * call.heads;
  float sum = 0;
  if (inside) {
    const T* const a = out.data + row * out.head_dim;
    const T* const b = dout.data + row * out.head_dim;
    for (int at = threadIdx.x % kDotLanes * kPack<T>; at < out.head_dim;
         at += kDotLanes * kPack<T>) {
      if (out.packs && dout.packs) {
        const auto x = *reinterpret_cast<const Pack<T>*>(a + at);
        const auto y = *reinterpret_cast<const Pack<T>*>(b + at);
#pragma unroll
        for (int e = 0; e < kPack<T>; ++e) sum = __fmaf_rn(ToFloat(x.at[e]), ToFloat(y.at[e]), sum);
      } else {
        for (int e = at; e < min(at + kPack<T>, out.head_dim); ++e) {
          sum = __fmaf_rn(ToFloat(a[e]), ToFloat(b[e]), sum);
        }
      }
    }
  }
#pragma unroll
  for (int step = kDotLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  }
  if (inside && threadIdx.x % kDotLanes == 0) {
    const int64_t token = row / call.heads;
    dot[(token / call.seq * call.heads + row % call.heads) * call.seq + token % call.seq] = sum;
  }
}

// Makes m p of a score, and ds of dp, which is dout . v before. `lse` is in powers of two.
struct ScoreGradient {
  float factor;  // scale log2(e)
  bool masked;   // Some query of the tile does not see some key.

  // `sees`: the query does see the key.
  __device__ void operator()(bool sees, float lse, float dot, float m, float& score,
                             float& dp) const {
    const float p = exp2f(__fmaf_rn(score, factor, -lse));
    const bool counts = !masked || sees;
    dp = counts ? p * (m * dp - dot) : 0.0f;
    score = counts ? p * m : 0.0f;
  }
};

template <typename T, int D, AttentionKind kind>
__global__ void __launch_bounds__(BackwardTiles<T, D>::kQueryThreads, kAttentionBlocks<kind>)
    AttentionDqKernel(BackwardArgs<T> args) {
  using Tiles = BackwardTiles<T, D>;
  constexpr int kQueries = Tiles::kOwn, kKeys = Tiles::kOther, kElements = Tiles::kElements;
  const AttentionCall& call = args.call;
  const AttentionPlace at(call.batch, call.heads);
  const int block_query = (static_cast<int>(CeilDiv(call.seq, kQueries)) - 1 - at.tile) * kQueries;
  const int end = min(block_query + kQueries, call.seq);
  const AttentionKeys<kind> keys(call, at.sample, block_query, end, kKeys);
  const AttentionSees<kind> sees(call, at.sample);
  const HeadRowsCuda<const T> k = SeenRows<kind>(call, args.k, at.sample, at.head / call.group);
  const HeadRowsCuda<const T> v = SeenRows<kind>(call, args.v, at.sample, at.head / call.group);
  const AttentionDraws draws = call.DrawsOf(at.sample, at.head);

  T* const q_tile = DynamicShared<T>();
  T* const dout_tile = q_tile + Tiles::kOwnElements;
  T* const kv_tiles = dout_tile + Tiles::kOwnElements;
  const auto load = [&](int key, int half) {
    LoadTile<D, kKeys>(kv_tiles + 2 * half * kElements, k, key);
    LoadTile<D, kKeys>(kv_tiles + (2 * half + 1) * kElements, v, key);
    CommitCopies();
  };
  LoadTile<D, kQueries>(q_tile, args.q.Rows(at.sample, at.head), block_query);
  LoadTile<D, kQueries>(dout_tile, args.dout.Rows(at.sample, at.head), block_query);
  load(keys.begin, 0);

  const int query = block_query + Warp() * 16;
  const int row_offset = Warp() * 16 * kLd<T, D>;
  const int last_start = call.StartOf<kind>(at.sample, end - 1);
  int start[2];
  float lse[2], dot[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = query + RowOf(0, 2 * r);
    const bool inside = row < call.seq;
    const int64_t i = call.RowOfQueries(at.sample, at.head) + row;
    start[r] = inside ? call.StartOf<kind>(at.sample, row) : 0;
    lse[r] = inside ? args.lse[i] * kLog2E : 0.0f;
    dot[r] = inside ? args.dot[i] : 0.0f;
  }
  Fragments<1, D / 8> dq = {};
  const bool biased = kind == AttentionKind::kAny && args.bias.table != nullptr;
  const float factor = call.scale * kLog2E;
  int half = 0;
  for (int key = keys.begin; key < keys.end; key += kKeys, half ^= 1) {
    WaitForCopies<0>();
    __syncthreads();
    if (key + kKeys < keys.end) load(key + kKeys, half ^ 1);
    if (call.Causal<kind>() && key >= query + 16) continue;
    const T* const k_tile = kv_tiles + 2 * half * kElements;
    Fragments<1, kKeys / 8> p = {}, ds = {};
    AddDots<D>(q_tile + row_offset, k_tile, p);
    AddDots<D>(dout_tile + row_offset, k_tile + kElements, ds);
    const ScoreGradient gradient{
        factor, kind == AttentionKind::kAny || key + kKeys > query + 1 || last_start > key};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float kept[4] = {1, 1, 1, 1};
      if (call.drops) DrawQueriesByKeys(draws, query, key + 8 * n, kept);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = query + RowOf(0, e), j = key + ColumnOf(n, e);
        const float bias = biased ? args.bias.At(at.head, i, j) : 0.0f;
        gradient(sees(i, start[e / 2], j), lse[e / 2] - bias, dot[e / 2], kept[e], p[0][n][e],
                 ds[0][n][e]);
      }
    }
    AddRows<D>(ds, k_tile, dq);
  }
  const float scale[1][2] = {{call.scale, call.scale}};
  // Without a key no step has waited for q.
  if constexpr (kind == AttentionKind::kAny) WaitForCopies<0>();
  __syncthreads();
  RoundInto<D>(q_tile + row_offset, dq, scale);
  __syncthreads();
  StoreTile<D, kQueries>(q_tile, args.dq.Rows(at.sample, at.head), block_query);
}

// dk and dv, over the queries of all heads of the group.
template <typename T, int D, AttentionKind kind>
__global__ void __launch_bounds__(BackwardTiles<T, D>::kKeyThreads, 1)
    AttentionDkvKernel(BackwardArgs<T> args) {
  using Tiles = BackwardTiles<T, D>;
  constexpr int kKeys = Tiles::kOwn, kQueries = Tiles::kOther, kElements = Tiles::kElements;
  constexpr int kColumns = D / Tiles::kParts;
  const AttentionCall& call = args.call;
  const AttentionPlace at(call.batch, call.heads / call.group);
  const int block_key = at.tile * kKeys;  // The first keys are seen most.
  const AttentionSees<kind> sees(call, at.sample);
  const int last_key = min(block_key + kKeys, sees.seen) - 1;

  T* const k_tile = DynamicShared<T>();
  T* const v_tile = k_tile + Tiles::kOwnElements;
  T* const q_tiles = v_tile + Tiles::kOwnElements;  // q, dout, and those of the next step.
  float* const lse_of = reinterpret_cast<float*>(q_tiles + 4 * kElements);
  float* const dot_of = lse_of + 2 * kQueries;
  int* const start_of = reinterpret_cast<int*>(dot_of + 2 * kQueries);

  int block_query = block_key;
  if constexpr (kind == AttentionKind::kAny) {
    if (!call.causal) {
      block_query = last_key < block_key ? 0 : call.StartOf<kind>(at.sample, block_key);
      block_query = block_query / kQueries * kQueries;
    }
  }
  // Steps of a head: up to the last queries whose document began by these keys.
  const int steps =
      kind == AttentionKind::kAny && last_key < block_key
          ? 0
          : call.StepsBegunBy<kind>(at.sample, last_key, block_query, call.seq, kQueries);
  const int first_head = at.head * call.group;
  const auto load = [&](int step, int half) {
    const int head = first_head + step / steps, query = block_query + step % steps * kQueries;
    T* const q_tile = q_tiles + 2 * half * kElements;
    LoadTile<D, kQueries>(q_tile, args.q.Rows(at.sample, head), query);
    LoadTile<D, kQueries>(q_tile + kElements, args.dout.Rows(at.sample, head), query);
    CommitCopies();
    if (threadIdx.x < kQueries) {
      const int row = query + static_cast<int>(threadIdx.x);
      const int to = half * kQueries + static_cast<int>(threadIdx.x);
      const bool inside = row < call.seq;
      const int64_t i = call.RowOfQueries(at.sample, head) + row;
      lse_of[to] = inside ? args.lse[i] * kLog2E : 0.0f;
      dot_of[to] = inside ? args.dot[i] : 0.0f;
      start_of[to] = inside ? call.StartOf<kind>(at.sample, row) : INT_MAX;  // Sees nothing.
    }
  };
  LoadTile<D, kKeys>(k_tile, args.k.Rows(at.sample, at.head), block_key);
  LoadTile<D, kKeys>(v_tile, args.v.Rows(at.sample, at.head), block_key);
  if (kind == AttentionKind::kCausal || steps > 0) {
    load(0, 0);
  } else {
    CommitCopies();
  }

  const int key_warp = Warp() % (kKeys / 16), column = Warp() / (kKeys / 16) * kColumns;
  const int key = block_key + key_warp * 16;  // The warp's first.
  const int row_offset = key_warp * 16 * kLd<T, D>;
  Fragments<1, kColumns / 8> dk = {}, dv = {};
  const bool biased = kind == AttentionKind::kAny && args.bias.table != nullptr;
  const float factor = call.scale * kLog2E;
  int half = 0;
  for (int step = 0; step < steps * call.group; ++step, half ^= 1) {
    WaitForCopies<0>();
    __syncthreads();
    if (step + 1 < steps * call.group) load(step + 1, half ^ 1);
    const int query = block_query + step % steps * kQueries;
    if (call.Causal<kind>() && query + kQueries <= key) continue;  // All before the warp's keys.
    const int head = first_head + step / steps;
    const AttentionDraws draws = call.DrawsOf(at.sample, head);
    const float* const lse = lse_of + half * kQueries;
    const float* const dot = dot_of + half * kQueries;
    const int* const start = start_of + half * kQueries;
    const T* const q_tile = q_tiles + 2 * half * kElements;
    const T* const dout_tile = q_tile + kElements;
    Fragments<1, kQueries / 8> p = {}, ds = {};
    AddDots<D>(k_tile + row_offset, q_tile, p);
    AddDots<D>(v_tile + row_offset, dout_tile, ds);
    const ScoreGradient gradient{
        factor, kind == AttentionKind::kAny || query < key + 15 || start[kQueries - 1] > key};
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      float kept[4] = {1, 1, 1, 1};
      if (call.drops) DrawKeysByQueries(draws, key, query + 8 * n, kept);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = ColumnOf(n, e), j = key + RowOf(0, e);
        const float bias = biased ? args.bias.At(head, query + i, j) : 0.0f;
        gradient(sees(query + i, start[i], j), lse[i] - bias, dot[i], kept[e], p[0][n][e],
                 ds[0][n][e]);
      }
    }
    AddRows<D>(p, dout_tile + column, dv);
    AddRows<D>(ds, q_tile + column, dk);
  }
  if constexpr (kind == AttentionKind::kAny) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // Whatever a query holds.
        if (key + RowOf(0, e) >= sees.seen) dk[0][n][e] = dv[0][n][e] = 0;
      }
    }
  }
  const float scale[1][2] = {{call.scale, call.scale}}, one[1][2] = {{1, 1}};
  // Without a query no step has waited for k and v.
  if constexpr (kind == AttentionKind::kAny) WaitForCopies<0>();
  __syncthreads();
  RoundInto<D>(k_tile + row_offset + column, dk, scale);
  RoundInto<D>(v_tile + row_offset + column, dv, one);
  __syncthreads();
  StoreTile<D, kKeys>(k_tile, args.dk.Rows(at.sample, at.head), block_key);
  StoreTile<D, kKeys>(v_tile, args.dv.Rows(at.sample, at.head), block_key);
}

// Sums of ds by distance j - i, for one sample's head. A block has kDistances of them, from number
// `first` on; each warp adds up those of its queries, each lane its own distances. ds is computed
// once more, for those of a tile's keys that lie at such a distance from some of its queries.
constexpr int kDistances = 128;

template <typename T, int D>
__global__ void __launch_bounds__(BackwardTiles<T, D>::kQueryThreads, 1)
    AttentionDistancesKernel(BackwardArgs<T> args) {
  constexpr AttentionKind kind = AttentionKind::kAny;
  using Tiles = BackwardTiles<T, D>;
  constexpr int kQueries = Tiles::kOwn, kKeys = Tiles::kOther, kElements = Tiles::kElements;
  constexpr int kWarps = Tiles::kQueryThreads / kWarp, kPerLane = kDistances / kWarp;
  constexpr int kDsLd = kKeys + 1;
  const AttentionCall& call = args.call;
  const AttentionPlace at(call.batch, call.heads);
  const AttentionSees<kind> sees(call, at.sample);
  const HeadRowsCuda<const T> k = SeenRows<kind>(call, args.k, at.sample, at.head / call.group);
  const HeadRowsCuda<const T> v = SeenRows<kind>(call, args.v, at.sample, at.head / call.group);
  const AttentionDraws draws = call.DrawsOf(at.sample, at.head);

  T* const q_tile = DynamicShared<T>();
  T* const dout_tile = q_tile + Tiles::kOwnElements;
  T* const k_tile = dout_tile + Tiles::kOwnElements;
  T* const v_tile = k_tile + kElements;
  // Where other kernels have the next step's k and v.
  static_assert(kWarps * 16 * kDsLd * sizeof(float) <= 2 * kElements * sizeof(T));
  static_assert(kWarps * kDistances * sizeof(float) <= 2 * kElements * sizeof(T));
  float* const all_ds = reinterpret_cast<float*>(v_tile + kElements);
  float* const warp_ds = all_ds + Warp() * 16 * kDsLd;

  const int first = at.tile * kDistances;
  const int row_offset = Warp() * 16 * kLd<T, D>;
  float sums[kPerLane] = {};
  for (int block_query = 0; block_query < call.seq; block_query += kQueries) {
    const int end = min(block_query + kQueries, call.seq);
    const AttentionKeys<kind> keys(call, at.sample, block_query, end, kKeys);
    // Key j is as far as number j - i + seq - 1 from query i.
    const int shift = block_query - call.seq + 1;
    const int begin_key = max(keys.begin, (first + shift) / 8 * 8);  // Draws want a multiple of 8.
    const int end_key = min(keys.end, first + kDistances + shift + kQueries - 1);
    if (begin_key >= end_key) continue;
    __syncthreads();  // The last queries are done with.
    LoadTile<D, kQueries>(q_tile, args.q.Rows(at.sample, at.head), block_query);
    LoadTile<D, kQueries>(dout_tile, args.dout.Rows(at.sample, at.head), block_query);
    const int query = block_query + Warp() * 16;
    int start[2];
    float lse[2], dot[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + RowOf(0, 2 * r);
      const bool inside = row < call.seq;
      const int64_t i = call.RowOfQueries(at.sample, at.head) + row;
      start[r] = inside ? call.StartOf<kind>(at.sample, row) : INT_MAX;  // Sees nothing.
      lse[r] = inside ? args.lse[i] * kLog2E : 0.0f;
      dot[r] = inside ? args.dot[i] : 0.0f;
    }
    for (int key = begin_key; key < end_key; key += kKeys) {
      __syncthreads();  // So are the last keys.
      LoadTile<D, kKeys>(k_tile, k, key);
      LoadTile<D, kKeys>(v_tile, v, key);
      CommitCopies();
      WaitForCopies<0>();
      __syncthreads();
      Fragments<1, kKeys / 8> p = {}, ds = {};
      AddDots<D>(q_tile + row_offset, k_tile, p);
      AddDots<D>(dout_tile + row_offset, v_tile, ds);
      const ScoreGradient gradient{call.scale * kLog2E, true};
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        float kept[4] = {1, 1, 1, 1};
        if (call.drops) DrawQueriesByKeys(draws, query, key + 8 * n, kept);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = query + RowOf(0, e), j = key + ColumnOf(n, e);
          gradient(sees(i, start[e / 2], j), lse[e / 2] - args.bias.At(at.head, i, j), dot[e / 2],
                   kept[e], p[0][n][e], ds[0][n][e]);
          warp_ds[RowOf(0, e) * kDsLd + ColumnOf(n, e)] = ds[0][n][e];
        }
      }
      __syncwarp();
#pragma unroll
      for (int d = 0; d < kPerLane; ++d) {
        const int column = first + d * kWarp + Lane() + query - call.seq + 1 - key;
        for (int row = max(0, -column); row < min(16, kKeys - column); ++row) {
          sums[d] += warp_ds[row * kDsLd + column + row];
        }
      }
      __syncwarp();
    }
  }
  __syncthreads();
#pragma unroll
  for (int d = 0; d < kPerLane; ++d) all_ds[Warp() * kDistances + d * kWarp + Lane()] = sums[d];
  __syncthreads();
  const int64_t row = static_cast<int64_t>(at.sample) * call.heads + at.head;
  for (int d = static_cast<int>(threadIdx.x); d < kDistances; d += Tiles::kQueryThreads) {
    if (first + d >= args.bias.distances) break;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all_ds[w * kDistances + d];
    args.bias_sums[row * args.bias.distances + first + d] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kBucketThreads) AttentionBucketsKernel(BackwardArgs<T> args) {
  SumBucket(args.bias, args.bias_sums, args.call.batch, args.call.heads, args.dbias);
}

}  // namespace

void AttentionBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                           const AttentionInputs& in, const ConstView& out, const ConstView& lse,
                           const ConstView& dout, const AttentionGradients& gradients,
                           const View& workspace) {
  if (dims.heads == 0) return;
  ForAttentionTiles(out.dtype, dims.head_dim, in, [&](auto is, auto columns, auto kind) {
    using T = typename decltype(is)::type;
    constexpr int D = decltype(columns)::value;
    using Tiles = BackwardTiles<T, D>;
    float* const dot = reinterpret_cast<float*>(workspace.data);
    const BackwardArgs<T> args{AttentionCallOf(dims, in),
                               HeadsOf<T>(in.q),
                               HeadsOf<T>(in.k),
                               HeadsOf<T>(in.v),
                               HeadsOf<T>(dout),
                               lse.As<float>(),
                               dot,
                               HeadsOf<T>(gradients.q),
                               HeadsOf<T>(gradients.k),
                               HeadsOf<T>(gradients.v),
                               BiasOf<T>(dims, in.bias),
                               dot + dims.batch * dims.heads * dims.seq,
                               reinterpret_cast<T*>(gradients.bias.data)};
    const int64_t rows = dims.batch * dims.seq * dims.heads;
    Launch<AttentionDotKernel<T>>(
        stream, dim3(static_cast<unsigned>(CeilDiv(rows, kDotThreads / kDotLanes))),
        dim3(kDotThreads), 0, args.call, HeadsOf<T>(out), args.dout, dot);
    Launch<AttentionDkvKernel<T, D, kind>>(
        stream, AttentionGrid(dims, dims.kv_heads, dims.keys, Tiles::kOwn),
        dim3(Tiles::kKeyThreads), Tiles::kKeyBytes, args);
    Launch<AttentionDqKernel<T, D, kind>>(stream,
                                          AttentionGrid(dims, dims.heads, dims.seq, Tiles::kOwn),
                                          dim3(Tiles::kQueryThreads), Tiles::kTileBytes, args);
    if (!gradients.HasBias()) return;
    Launch<AttentionDistancesKernel<T, D>>(
        stream, AttentionGrid(dims, dims.heads, dims.distances(), kDistances),
        dim3(Tiles::kQueryThreads), Tiles::kTileBytes, args);
    Launch<AttentionBucketsKernel<T>>(stream,
                                      dim3(static_cast<unsigned>(gradients.bias.NumElements())),
                                      dim3(kBucketThreads), 0, args);
  });
}

}  // namespace fsdp
