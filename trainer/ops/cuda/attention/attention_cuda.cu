// Formulas: attention.h. A block has a tile of queries of one head, and goes over the tiles of keys
// and values. The next tile is loaded while it computes.
#include <cmath>

#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/attention_mask.h"
#include "trainer/ops/cuda/attention/attention_products.h"
#include "trainer/ops/cuda/attention/attention_tile.h"
#include "trainer/ops/cuda/attention/heads_cuda.h"

namespace fsdp {
namespace {

template <typename T, int D, AttentionKind kind>
struct ForwardTiles {
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(T));
  static constexpr int kThreads = 128;
  // 32 queries' sums leave no registers for a mask and a bias.
  static constexpr bool kFew = kind == AttentionKind::kAny && sizeof(T) == 2;
  static constexpr int kM = kRowBytes <= 256 && !kFew ? 2 : 1;
  static constexpr int kQueries = kThreads / kWarp * 16 * kM;
  static constexpr int kKeys = kRowBytes <= 128 ? 64 : kRowBytes <= 512 ? 32 : 16;
  static constexpr int kElements = kKeys * kLd<T, D>;  // A tile of k or v.
  static constexpr size_t kBytes = sizeof(T) * (kQueries * kLd<T, D> + 4 * kElements);
};

template <typename T>
struct ForwardArgs {
  AttentionCall call;
  HeadsCuda<const T> q, k, v;
  HeadsCuda<T> out;
  float* lse;
  BiasCuda<T> bias;
};

// The elements of `scores` whose key the query does not see become -infinity.
template <AttentionKind kind, int M, int N>
__device__ void Mask(const AttentionSees<kind>& sees, int query, int key, const int (&start)[M][2],
                     Fragments<M, N>& scores) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = key + ColumnOf(n, e);
        if (!sees(query + RowOf(m, e), start[m][e / 2], j)) scores[m][n][e] = -INFINITY;
      }
    }
  }
}

// scores becomes factor scores + bias.
template <typename T, int M, int N>
__device__ void AddBias(const BiasCuda<T>& bias, float factor, int head, int query, int key,
                        Fragments<M, N>& scores) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[m][n][e] = __fmaf_rn(scores[m][n][e], factor,
                                    bias.At(head, query + RowOf(m, e), key + ColumnOf(n, e)));
      }
    }
  }
}

// Does some query of the warp's not see some of `n` keys?
template <AttentionKind kind>
__device__ bool MasksSome(const AttentionSees<kind>& sees, int query, int last_start, int key,
                          int n) {
  const AttentionCall& call = sees.call;
  const bool causal = call.Causal<kind>();
  if ((causal && key + n > query + 1) || last_start > key) return true;
  return kind == AttentionKind::kAny && (key + n > sees.seen || call.HasEnds<kind>());
}

// scores becomes exp(scale (scores - top)), where top is the maximum so far. The earlier sums are
// scaled to it. `factor` is scale log2(e).
template <int M, int N, int D>
__device__ void RunningSoftmax(float factor, Fragments<M, N>& scores, float (&top)[M][2],
                               float (&sum)[M][2], Fragments<M, D>& out) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = top[m][r];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        most = fmaxf(most, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      // The maximum is -infinity where no key is seen; it must not be subtracted from itself.
      const float shift = most == -INFINITY ? 0.0f : __fmul_rn(most, factor);
      const float before = exp2f(__fmul_rn(top[m][r], factor) - shift);
      top[m][r] = most;
      sum[m][r] *= before;
#pragma unroll
      for (int d = 0; d < D; ++d) {
        out[m][d][2 * r] *= before;
        out[m][d][2 * r + 1] *= before;
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          scores[m][n][e] = exp2f(__fmaf_rn(scores[m][n][e], factor, -shift));
          sum[m][r] += scores[m][n][e];
        }
      }
    }
  }
}

template <typename T, int D, AttentionKind kind>
__global__ void __launch_bounds__(ForwardTiles<T, D, kind>::kThreads, kAttentionBlocks<kind>)
    AttentionForwardKernel(ForwardArgs<T> args) {
  using Tiles = ForwardTiles<T, D, kind>;
  constexpr int M = Tiles::kM, kKeys = Tiles::kKeys, kElements = Tiles::kElements;
  const AttentionCall& call = args.call;
  const AttentionPlace at(call.batch, call.heads);
  // The last queries see most keys: they begin first.
  const int block_query =
      (static_cast<int>(CeilDiv(call.seq, Tiles::kQueries)) - 1 - at.tile) * Tiles::kQueries;
  const int end = min(block_query + Tiles::kQueries, call.seq);  // The end of its queries.
  const AttentionKeys<kind> keys(call, at.sample, block_query, end, kKeys);
  const AttentionSees<kind> sees(call, at.sample);
  const HeadRowsCuda<const T> k = SeenRows<kind>(call, args.k, at.sample, at.head / call.group);
  const HeadRowsCuda<const T> v = SeenRows<kind>(call, args.v, at.sample, at.head / call.group);
  const AttentionDraws draws = call.DrawsOf(at.sample, at.head);

  T* const q_tile = DynamicShared<T>();
  T* const kv_tiles = q_tile + Tiles::kQueries * kLd<T, D>;  // k, v, and those of the next step.
  const auto load = [&](int key, int half) {
    LoadTile<D, kKeys>(kv_tiles + 2 * half * kElements, k, key);
    LoadTile<D, kKeys>(kv_tiles + (2 * half + 1) * kElements, v, key);
    CommitCopies();
  };
  LoadTile<D, Tiles::kQueries>(q_tile, args.q.Rows(at.sample, at.head), block_query);
  load(keys.begin, 0);

  const int query = block_query + Warp() * 16 * M;  // The warp's first.
  T* const q_rows = q_tile + Warp() * 16 * M * kLd<T, D>;
  const int last_start = call.StartOf<kind>(at.sample, end - 1);
  int start[M][2];
  float top[M][2], sum[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + RowOf(m, 2 * r);
      start[m][r] = row < call.seq ? call.StartOf<kind>(at.sample, row) : 0;
      top[m][r] = -INFINITY;
      sum[m][r] = 0;
    }
  }
  Fragments<M, D / 8> out = {};
  const bool biased = kind == AttentionKind::kAny && args.bias.table != nullptr;
  const float factor = biased ? 1.0f : call.scale * kLog2E;
  int half = 0;
  for (int key = keys.begin; key < keys.end; key += kKeys, half ^= 1) {
    WaitForCopies<0>();
    __syncthreads();
    if (key + kKeys < keys.end) load(key + kKeys, half ^ 1);
    // Behind all of the warp's queries.
    if (call.Causal<kind>() && key >= query + 16 * M) continue;
    Fragments<M, kKeys / 8> p = {};
    AddDots<D>(q_rows, kv_tiles + 2 * half * kElements, p);
    if (biased) AddBias(args.bias, call.scale * kLog2E, at.head, query, key, p);
    if (MasksSome(sees, query, last_start, key, kKeys)) Mask(sees, query, key, start, p);
    RunningSoftmax(factor, p, top, sum, out);
    if (call.drops) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          float kept[4];
          DrawQueriesByKeys(draws, query + 16 * m, key + 8 * n, kept);
#pragma unroll
          for (int e = 0; e < 4; ++e) p[m][n][e] *= kept[e];
        }
      }
    }
    AddRows<D>(p, kv_tiles + (2 * half + 1) * kElements, out);
  }

  float inverse[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = sum[m][r];
      all += __shfl_xor_sync(kAllLanes, all, 1);
      all += __shfl_xor_sync(kAllLanes, all, 2);
      // One that sees no key has zeros.
      const bool none = kind == AttentionKind::kAny && start[m][r] >= sees.seen;
      inverse[m][r] = none ? 0.0f : 1.0f / all;
      const int row = query + RowOf(m, 2 * r);
      if (Lane() % 4 == 0 && row < call.seq) {
        args.lse[call.RowOfQueries(at.sample, at.head) + row] =
            none ? 0.0f : (__fmul_rn(top[m][r], factor) + log2f(all)) * 0.6931471805599453f;
      }
    }
  }
  // Without a key no step has waited for q.
  if constexpr (kind == AttentionKind::kAny) WaitForCopies<0>();
  __syncthreads();
  RoundInto<D>(q_rows, out, inverse);
  __syncthreads();
  StoreTile<D, Tiles::kQueries>(q_tile, args.out.Rows(at.sample, at.head), block_query);
}

}  // namespace

void AttentionForwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                          const AttentionInputs& in, const View& out, const View& lse) {
  ForAttentionTiles(out.dtype, dims.head_dim, in, [&](auto is, auto columns, auto kind) {
    using T = typename decltype(is)::type;
    constexpr int D = decltype(columns)::value;
    using Tiles = ForwardTiles<T, D, kind>;
    const ForwardArgs<T> args{AttentionCallOf(dims, in), HeadsOf<T>(in.q), HeadsOf<T>(in.k),
                              HeadsOf<T>(in.v),          HeadsOf<T>(out),  lse.As<float>(),
                              BiasOf<T>(dims, in.bias)};
    Launch<AttentionForwardKernel<T, D, kind>>(
        stream, AttentionGrid(dims, dims.heads, dims.seq, Tiles::kQueries), dim3(Tiles::kThreads),
        Tiles::kBytes, args);
  });
}

}  // namespace fsdp
