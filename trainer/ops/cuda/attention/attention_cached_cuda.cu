// Formulas: attention_cached.h. One kernel writes the new keys and values into the cache. In the
// next one a block has one query, and eight lanes have a key: 16 keys at a time. Each eight lanes
// have a maximum and sums of their own, which are joined at the end.
#include <cmath>

#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/attention/heads_cuda.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

template <typename T>
struct RememberArgs {
  HeadsCuda<const T> k, v;
  HeadsCuda<T> cache_k, cache_v;
  const int32_t* positions;
  int heads;
  int64_t count;  // Packs of k and v together; a row's last may be partly filled.
};

template <typename T>
__global__ void __launch_bounds__(kThreads) AttentionRememberKernel(RememberArgs<T> args) {
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const int packs = static_cast<int>(CeilDiv(args.k.head_dim, kPack<T>));
  const int column = static_cast<int>(i % packs) * kPack<T>;
  i /= packs;
  const int head = static_cast<int>(i % args.heads);
  i /= args.heads;
  const bool is_v = i % 2 == 1;
  const int64_t row = i / 2;  // Among all samples' rows.
  const int64_t sample = row / args.k.rows;
  const HeadRowsCuda<const T> from = (is_v ? args.v : args.k).Rows(sample, head);
  const HeadRowsCuda<T> to = (is_v ? args.cache_v : args.cache_k).Rows(sample, head);
  const T* const source = from.data + row % args.k.rows * from.stride + column;
  T* const target = to.data + args.positions[row] * to.stride + column;
  if (from.packs && to.packs) {
    *reinterpret_cast<Pack<T>*>(target) = *reinterpret_cast<const Pack<T>*>(source);
  } else {
    for (int e = 0; e < min(kPack<T>, from.head_dim - column); ++e) target[e] = source[e];
  }
}

// Elements of a row that one of its eight lanes has: every eighth pack.
constexpr int kRowLanes = 8;
template <typename T>
inline constexpr int kSlots = static_cast<int>(kMaxHeadDim) / (kRowLanes * kPack<T>);

// Pack `slot` of the lane in row `row` as floats, zero from head_dim on.
template <typename T>
__device__ void LoadSlot(const HeadRowsCuda<T>& rows, int row, int slot, float (&x)[kPack<T>]) {
  const int column = (slot * kRowLanes + static_cast<int>(threadIdx.x) % kRowLanes) * kPack<T>;
  const auto* const from = rows.data + row * rows.stride + column;
  if (rows.packs && column < rows.head_dim) {
    const auto pack = *reinterpret_cast<const Pack<std::remove_const_t<T>>*>(from);
#pragma unroll
    for (int e = 0; e < kPack<T>; ++e) x[e] = ToFloat(pack.at[e]);
  } else {
#pragma unroll
    for (int e = 0; e < kPack<T>; ++e) x[e] = column + e < rows.head_dim ? ToFloat(from[e]) : 0.0f;
  }
}

// The softmax so far: the maximum of the scores, which are exponents of two, and the sum of the
// powers, each divided by that of the maximum.
struct Partial {
  float top = -INFINITY, sum = 0;

  // The factor for a sum whose maximum was `from`. -infinity, the maximum of no keys, must not be
  // subtracted from itself.
  static __device__ float Scale(float from, float to) {
    return exp2f(from - (to == -INFINITY ? 0.0f : to));
  }
};

constexpr float kLog2OfE = 1.4426950408889634f;

template <typename T>
struct CachedArgs {
  HeadsCuda<const T> q, k, v;  // k and v: the cache, or all that there are.
  const int32_t* positions;    // In kFull null without a bias.
  const int32_t* lengths;      // Null: all keys may be seen.
  bool causal;
  const T* table;  // The bias's. Null: none.
  const int32_t* buckets;
  int columns, of_positions;
  T* out;
  int heads, group;
  float factor;  // log2(e) scale

  // The last key that a token of a sample sees; -1: none.
  __device__ int Last(int64_t sample, int64_t token) const {
    if (causal) return positions[token];
    return (lengths == nullptr ? k.rows : max(0, min(lengths[sample], k.rows))) - 1;
  }
  // In powers of two.
  __device__ float Bias(int head, int64_t token, int key) const {
    const int distance = key - positions[token] + of_positions - 1;
    return kLog2OfE * ToFloat(table[static_cast<int64_t>(head) * columns + buckets[distance]]);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) AttentionCachedKernel(CachedArgs<T> args) {
  constexpr int S = kSlots<T>, kGroups = kThreads / kRowLanes;
  __shared__ float warp_top[kWarps], warp_sum[kWarps];
  __shared__ float warp_out[kWarps][kMaxHeadDim];
  const int head_dim = args.q.head_dim;
  const int64_t token = blockIdx.x / static_cast<unsigned>(args.heads);
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(args.heads));
  const int64_t sample = token / args.q.rows;
  const HeadRowsCuda<const T> q = args.q.Rows(sample, head);
  const HeadRowsCuda<const T> k = args.k.Rows(sample, head / args.group);
  const HeadRowsCuda<const T> v = args.v.Rows(sample, head / args.group);
  const int last = args.Last(sample, token);
  float query[S][kPack<T>], out[S][kPack<T>] = {};
#pragma unroll
  for (int s = 0; s < S; ++s) {
    LoadSlot(q, static_cast<int>(token % args.q.rows), s, query[s]);
  }
  Partial softmax;
  for (int first = 0; first <= last; first += kGroups) {
    const int key = first + static_cast<int>(threadIdx.x) / kRowLanes;
    const bool sees = key <= last;
    float score = 0;
    if (sees) {
#pragma unroll
      for (int s = 0; s < S; ++s) {
        if (s * kRowLanes * kPack<T> >= head_dim) break;
        float x[kPack<T>];
        LoadSlot(k, key, s, x);
#pragma unroll
        for (int e = 0; e < kPack<T>; ++e) score = __fmaf_rn(query[s][e], x[e], score);
      }
    }
#pragma unroll
    for (int step = kRowLanes / 2; step > 0; step /= 2) {
      score += __shfl_xor_sync(kAllLanes, score, step);
    }
    if (!sees) continue;
    score *= args.factor;
    if (args.table != nullptr) score += args.Bias(head, token, key);
    const float top = fmaxf(softmax.top, score), before = Partial::Scale(softmax.top, top);
    const float p = Partial::Scale(score, top);
    softmax = {top, softmax.sum * before + p};
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (s * kRowLanes * kPack<T> >= head_dim) break;
      float x[kPack<T>];
      LoadSlot(v, key, s, x);
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) out[s][e] = __fmaf_rn(p, x[e], before * out[s][e]);
    }
  }
#pragma unroll
  for (int step = kRowLanes; step < kWarp; step *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, softmax.top, step);
    const float top = fmaxf(softmax.top, other), mine = Partial::Scale(softmax.top, top);
    const float others = Partial::Scale(other, top);
    softmax = {top, mine * softmax.sum + others * __shfl_xor_sync(kAllLanes, softmax.sum, step)};
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) {
        const float theirs = __shfl_xor_sync(kAllLanes, out[s][e], step);
        out[s][e] = mine * out[s][e] + others * theirs;
      }
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp < kRowLanes) {
    warp_top[warp] = softmax.top;
    warp_sum[warp] = softmax.sum;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) {
        warp_out[warp][(s * kRowLanes + threadIdx.x % kRowLanes) * kPack<T> + e] = out[s][e];
      }
    }
  }
  __syncthreads();
  float top = warp_top[0], sum = 0;
  for (int w = 1; w < kWarps; ++w) top = fmaxf(top, warp_top[w]);
  float scale[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    scale[w] = Partial::Scale(warp_top[w], top);
    sum += scale[w] * warp_sum[w];
  }
  for (int d = threadIdx.x; d < head_dim; d += kThreads) {
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += scale[w] * warp_out[w][d];
    args.out[int64_t{blockIdx.x} * head_dim + d] = FromFloat<T>(last < 0 ? 0.0f : all / sum);
  }
}

}  // namespace

void AttentionCachedCuda(CudaStreamHandle stream, const AttentionCachedDims& dims,
                         const AttentionInputs& in, const View& cache_k, const View& cache_v,
                         const View& out) {
  ForFloat(out.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const bool causal = in.mask == AttentionMask::kCausal;
    const auto* const positions = in.HasPositions() ? in.positions.As<int32_t>() : nullptr;
    if (causal) {
      const RememberArgs<T> remember{
          HeadsOf<T>(in.k),
          HeadsOf<T>(in.v),
          HeadsOf<T>(cache_k),
          HeadsOf<T>(cache_v),
          positions,
          static_cast<int>(dims.kv_heads),
          dims.batch * dims.n * 2 * dims.kv_heads * CeilDiv(dims.head_dim, kPack<T>)};
      Launch<AttentionRememberKernel<T>>(
          stream, dim3(static_cast<unsigned>(CeilDiv(remember.count, kThreads))), dim3(kThreads), 0,
          remember);
    }
    const AttentionBias& bias = in.bias;
    CachedArgs<T> args{.q = HeadsOf<T>(in.q),
                       .k = causal ? HeadsOf<T>(ConstView(cache_k)) : HeadsOf<T>(in.k),
                       .v = causal ? HeadsOf<T>(ConstView(cache_v)) : HeadsOf<T>(in.v),
                       .positions = positions,
                       .lengths = in.HasLengths() ? in.lengths.As<int32_t>() : nullptr,
                       .causal = causal,
                       .table = nullptr,
                       .buckets = nullptr,
                       .columns = 0,
                       .of_positions = 0,
                       .out = out.As<T>(),
                       .heads = static_cast<int>(dims.heads),
                       .group = static_cast<int>(dims.heads / dims.kv_heads),
                       .factor = in.scale
                                     ? kLog2OfE * *in.scale
                                     : kLog2OfE / std::sqrt(static_cast<float>(dims.head_dim))};
    if (in.HasBias()) {
      args.table = reinterpret_cast<const T*>(bias.table.data);
      args.buckets = bias.buckets.As<int32_t>();
      args.columns = static_cast<int>(bias.table.shape[1]);
      args.of_positions = static_cast<int>(bias.buckets.shape[0] - dims.capacity + 1);
    }
    Launch<AttentionCachedKernel<T>>(stream,
                                     dim3(static_cast<unsigned>(dims.batch * dims.n * dims.heads)),
                                     dim3(kThreads), 0, args);
  });
}

}  // namespace fsdp
