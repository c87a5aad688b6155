// Formulas: attention_math.h. A block mixes 32 keys of a query at a time, over all heads, in shared
// memory. A lane has a key, and warps share the heads.
// Tests: tests/trainer/ops/attention_math_test.cc
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/attention/attention_call.h"
#include "trainer/ops/cuda/attention/attention_scores.h"
#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/ptx.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPiece = kWarp, kLine = kPiece + 1;  // A head's keys; floats from one head's on.

// A parameter: of T or of fp32.
template <typename T>
struct MixingParameter {
  const void* data;
  bool is_float;

  __device__ float At(int i) const {
    return is_float ? static_cast<const float*>(data)[i] : ToFloat(static_cast<const T*>(data)[i]);
  }
};
template <typename T>
MixingParameter<T> ParameterOf(const ConstView& view) {
  return {view.data, view.dtype == DType::kFloat32};
}

template <typename T>
struct MixingArgs {
  AttentionCall call;
  ScoresCuda<const T> probabilities;
  MixingParameter<T> matrix, weight, bias;
  float eps;
};

// A block's buffers, in its shared memory.
struct MixingShared {
  float* matrix;           // [heads, heads]
  float *p, *x, *dw, *du;  // [heads, kLine]: m p; u, normalised; two of backward's.
  int heads;

  __device__ MixingShared(float* memory, int n)
      : matrix(memory),
        p(memory + n * n),
        x(p + n * kLine),
        dw(x + n * kLine),
        du(dw + n * kLine),
        heads(n) {}
  static size_t Bytes(int64_t n, bool backward) {
    return sizeof(float) * static_cast<size_t>(n * n + (backward ? 4 : 2) * n * kLine);
  }
};

// A lane's statistics of its key's u, over all heads.
struct MixedKey {
  float mean, rstd;
};

// m p of 32 keys from `key` on, mixed and normalised in shared.x. Every thread calls it, and finds
// all there.
template <typename T>
__device__ MixedKey Mix(const MixingArgs<T>& args, const MixingShared& shared,
                        const SeenKeysCuda& seen, int sample, int query, int key) {
  const int mine = key + Lane(), heads = shared.heads;
  for (int h = Warp(); h < heads; h += kWarps) {
    float p = seen.Has(mine) ? ToFloat(args.probabilities.Row(sample, h, query)[mine]) : 0.0f;
    if (args.call.drops) {
      float m[4];
      DrawFourKeys(args.call.DrawsOf(sample, h), query, mine / 4 * 4, m);
      p *= mine % 4 < 2 ? (mine % 2 == 0 ? m[0] : m[1]) : (mine % 2 == 0 ? m[2] : m[3]);
    }
    shared.p[h * kLine + Lane()] = p;
  }
  __syncthreads();
  for (int g = Warp(); g < heads; g += kWarps) {
    float u = 0;
    for (int h = 0; h < heads; ++h) {
      u = __fmaf_rn(shared.matrix[h * heads + g], shared.p[h * kLine + Lane()], u);
    }
    shared.x[g * kLine + Lane()] = u;
  }
  __syncthreads();
  const float scale = 1.0f / static_cast<float>(heads);
  float sum = 0, squares = 0;
  for (int g = 0; g < heads; ++g) sum += shared.x[g * kLine + Lane()];
  const float mean = sum * scale;
  for (int g = 0; g < heads; ++g) {
    const float d = shared.x[g * kLine + Lane()] - mean;
    squares = __fmaf_rn(d, d, squares);
  }
  const float rstd = 1.0f / sqrtf(squares * scale + args.eps);
  __syncthreads();
  for (int g = Warp(); g < heads; g += kWarps) {
    float& x = shared.x[g * kLine + Lane()];
    x = (x - mean) * rstd;
  }
  __syncthreads();
  return {mean, rstd};
}

template <typename T>
__device__ MixingShared LoadMatrix(const MixingArgs<T>& args) {
  const int heads = args.call.heads;
  const MixingShared shared(DynamicShared<float>(), heads);
  for (int i = static_cast<int>(threadIdx.x); i < heads * heads; i += kThreads) {
    shared.matrix[i] = args.matrix.At(i);
  }
  return shared;
}

// A block has a query, of all heads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    HeadMixingKernel(MixingArgs<T> args, ScoresCuda<T> weights) {
  const AttentionCall& call = args.call;
  const MixingShared shared = LoadMatrix(args);
  const int sample = static_cast<int>(blockIdx.x / static_cast<unsigned>(call.seq));
  const int query = static_cast<int>(blockIdx.x % static_cast<unsigned>(call.seq));
  const SeenKeysCuda seen(call, sample, query);
  for (int g = Warp(); g < call.heads; g += kWarps) {
    seen.ZeroOthers(weights.Row(sample, g, query), call.keys);
  }
  for (int key = 0; key < seen.end; key += kPiece) {
    __syncthreads();  // The last keys are done with, and the matrix is there.
    Mix(args, shared, seen, sample, query, key);
    const int mine = key + Lane();
    if (!seen.Has(mine)) continue;
    for (int g = Warp(); g < call.heads; g += kWarps) {
      weights.Row(sample, g, query)[mine] =
          FromFloat<T>(__fmaf_rn(shared.x[g * kLine + Lane()], args.weight.At(g), args.bias.At(g)));
    }
  }
}

// dw becomes dp. A block has a part of all queries, and sums of its own. A thread has the sums of
// several elements of the matrix, and perhaps of one element of the weight and the bias.
constexpr int kSumsOfThread = static_cast<int>(kMaxMixedHeads * kMaxMixedHeads) / kThreads;
static_assert(kMaxMixedHeads <= kThreads);

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    HeadMixingBackwardKernel(MixingArgs<T> args, ScoresCuda<T> dw, float* sums) {
  const AttentionCall& call = args.call;
  const MixingShared shared = LoadMatrix(args);
  const int heads = call.heads, thread = static_cast<int>(threadIdx.x);
  const int64_t rows = static_cast<int64_t>(call.batch) * call.seq, part = blockIdx.x;
  const float scale = 1.0f / static_cast<float>(heads);
  float of_matrix[kSumsOfThread] = {}, of_weight = 0, of_bias = 0;
  for (int64_t row = part * rows / gridDim.x; row < (part + 1) * rows / gridDim.x; ++row) {
    const int sample = static_cast<int>(row / call.seq), query = static_cast<int>(row % call.seq);
    const SeenKeysCuda seen(call, sample, query);
    for (int key = 0; key < seen.end; key += kPiece) {
      __syncthreads();  // The last keys are done with, and the matrix is there.
      const int mine = key + Lane();
      for (int g = Warp(); g < heads; g += kWarps) {
        shared.dw[g * kLine + Lane()] =
            seen.Has(mine) ? ToFloat(dw.Row(sample, g, query)[mine]) : 0.0f;
      }
      const MixedKey mixed = Mix(args, shared, seen, sample, query, key);
      float mean = 0, dot = 0;  // For weight dw, and for its product with x.
      for (int g = 0; g < heads; ++g) {
        const float weighed = args.weight.At(g) * shared.dw[g * kLine + Lane()];
        mean += weighed;
        dot = __fmaf_rn(weighed, shared.x[g * kLine + Lane()], dot);
      }
      for (int g = Warp(); g < heads; g += kWarps) {
        const float weighed = args.weight.At(g) * shared.dw[g * kLine + Lane()];
        shared.du[g * kLine + Lane()] =
            mixed.rstd * (weighed - scale * mean - shared.x[g * kLine + Lane()] * (scale * dot));
      }
      __syncthreads();
      for (int h = Warp(); h < heads; h += kWarps) {
        float dp = 0;
        for (int g = 0; g < heads; ++g) {
          dp = __fmaf_rn(shared.matrix[h * heads + g], shared.du[g * kLine + Lane()], dp);
        }
        if (call.drops) {
          float m[4];
          DrawFourKeys(call.DrawsOf(sample, h), query, mine / 4 * 4, m);
          dp *= mine % 4 < 2 ? (mine % 2 == 0 ? m[0] : m[1]) : (mine % 2 == 0 ? m[2] : m[3]);
        }
        if (seen.Has(mine)) dw.Row(sample, h, query)[mine] = FromFloat<T>(dp);
      }
#pragma unroll
      for (int s = 0; s < kSumsOfThread; ++s) {
        const int i = s * kThreads + thread;
        if (i >= heads * heads) break;
        const float* const p = shared.p + i / heads * kLine;
        const float* const du = shared.du + i % heads * kLine;
        for (int j = 0; j < kPiece; ++j) of_matrix[s] = __fmaf_rn(p[j], du[j], of_matrix[s]);
      }
      if (thread < heads) {
        const float* const x = shared.x + thread * kLine;
        const float* const dy = shared.dw + thread * kLine;
        for (int j = 0; j < kPiece; ++j) {
          of_weight = __fmaf_rn(dy[j], x[j], of_weight);
          of_bias += dy[j];
        }
      }
    }
  }
  float* const to = sums + part * (heads * heads + 2 * heads);
#pragma unroll
  for (int s = 0; s < kSumsOfThread; ++s) {
    const int i = s * kThreads + thread;
    if (i < heads * heads) to[i] = of_matrix[s];
  }
  if (thread < heads) {
    to[heads * heads + thread] = of_weight;
    to[heads * heads + heads + thread] = of_bias;
  }
}

template <typename G>
__global__ void HeadMixingAddGradient(const float* sums, int64_t parts, int64_t stride,
                                      int64_t count, G* gradient) {
  AddColumnSums(sums, parts, stride, count, gradient);
}

template <typename T>
MixingArgs<T> ArgsOf(const AttentionDims& dims, const AttentionInputs& in, const HeadMixing& mixing,
                     const ConstView& probabilities) {
  return {AttentionCallOf(dims, in),     ScoresOf<T>(probabilities),  ParameterOf<T>(mixing.matrix),
          ParameterOf<T>(mixing.weight), ParameterOf<T>(mixing.bias), mixing.eps};
}

}  // namespace

void MixHeadsCuda(CudaStreamHandle stream, const AttentionDims& dims, const AttentionInputs& in,
                  const HeadMixing& mixing, const View& probabilities, const View& weights) {
  ForFloat(weights.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<HeadMixingKernel<T>>(stream, dim3(static_cast<unsigned>(dims.batch * dims.seq)),
                                dim3(kThreads), MixingShared::Bytes(dims.heads, false),
                                ArgsOf<T>(dims, in, mixing, probabilities), ScoresOf<T>(weights));
  });
}

void MixHeadsBackwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                          const AttentionInputs& in, const HeadMixing& mixing,
                          const ConstView& probabilities, const View& dw, const View& sums_view,
                          const HeadMixingGradients& gradients) {
  const int64_t parts = HeadMixingParts(dims.batch * dims.seq), heads = dims.heads;
  const int64_t stride = HeadMixingSums(heads);
  float* const sums = sums_view.As<float>();
  ForFloat(dw.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<HeadMixingBackwardKernel<T>>(stream, dim3(static_cast<unsigned>(parts)), dim3(kThreads),
                                        MixingShared::Bytes(heads, true),
                                        ArgsOf<T>(dims, in, mixing, probabilities), ScoresOf<T>(dw),
                                        sums);
  });
  int64_t first = 0;
  for (const auto& [gradient, count] :
       {std::pair(&gradients.matrix, heads * heads), std::pair(&gradients.weight, heads),
        std::pair(&gradients.bias, heads)}) {
    const int64_t n = count;
    if (const std::optional<View>& to = *gradient) {
      ForFloat(to->dtype, [&](auto is) {
        using G = typename decltype(is)::type;
        Launch<HeadMixingAddGradient<G>>(stream, ColumnSumsGrid(n), ColumnSumsBlock(), 0,
                                         sums + first, parts, stride, n, to->As<G>());
      });
    }
    first += n;
  }
}

}  // namespace fsdp
