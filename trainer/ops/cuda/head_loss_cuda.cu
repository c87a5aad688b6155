#include <algorithm>
#include <cfloat>

#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/head_loss_cuda.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

constexpr int kMostThreads = 512;

struct LossRow {
  int64_t vocab, stride;
  const int32_t* targets;
  const float* weights;
  const float* loss_scale;  // Null: 1.
  double* terms;
  float scale;
  bool with_gradient;
};

// A row of logits, one a block: its term of the loss, and g in the logits' place. The maximum, and
// the sum of e^(l - maximum) beside it, in one pass.
template <typename T>
__global__ void LossOfRows(T* logits, LossRow args) {
  constexpr int kWide = kPack<T>;
  __shared__ float maxima[kMostThreads / kWarp];
  __shared__ double sums[kMostThreads / kWarp];
  const int64_t i = blockIdx.x;
  T* const row = logits + i * args.stride;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t begin = int64_t{kWide} * thread, step = int64_t{kWide} * threads;
  const float weight = args.weights[i];
  if (weight == 0) {
    if (thread == 0) args.terms[i] = 0;
    Pack<T> zeros;
#pragma unroll
    for (int e = 0; e < kWide; ++e) zeros.at[e] = FromFloat<T>(0);
    for (int64_t v = begin; args.with_gradient && v < args.vocab; v += step) {
      *reinterpret_cast<Pack<T>*>(row + v) = zeros;
    }
    return;
  }
  const int32_t target = args.targets[i];
  const float target_logit = thread == 0 ? ToFloat(row[target]) : 0;

  // Finite from the start: beside it a logit of minus infinity counts as nothing.
  float max = -FLT_MAX, sum = 0;
#pragma unroll 4
  for (int64_t v = begin; v < args.vocab; v += step) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(row + v);
    float most = max;
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (v + e < args.vocab) most = fmaxf(most, ToFloat(pack.at[e]));
    }
    sum *= expf(max - most);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (v + e < args.vocab) sum += expf(ToFloat(pack.at[e]) - most);
    }
    max = most;
  }
  const float row_max = BlockMax(max, maxima);
  const double row_sum = BlockSum(static_cast<double>(sum * expf(max - row_max)), sums);
  if (thread == 0) {
    args.terms[i] = weight * (log(row_sum) + (static_cast<double>(row_max) - target_logit));
  }
  if (!args.with_gradient) return;
  // g = factor (e - [target] sum).
  const float all = static_cast<float>(row_sum);
  const float gradient_scale = args.loss_scale == nullptr ? 1.0f : *args.loss_scale;
  const float factor = args.scale * weight / all * gradient_scale;
  for (int64_t v = begin; v < args.vocab; v += step) {
    Pack<T>* const at = reinterpret_cast<Pack<T>*>(row + v);
    Pack<T> pack = *at;
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      float g = expf(ToFloat(pack.at[e]) - row_max);
      if (v + e == target) g -= all;
      pack.at[e] = FromFloat<T>(factor * g);
    }
    *at = pack;
  }
}

// loss += scale (the sum of all terms), by one block.
constexpr int kTermThreads = 512;
__global__ void AddTerms(const double* terms, int64_t rows, float scale, float* loss) {
  __shared__ double sums[kTermThreads / kWarp];
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < rows; i += kTermThreads) sum += terms[i];
  sum = BlockSum(sum, sums);
  if (threadIdx.x == 0) *loss += static_cast<float>(scale * sum);
}

// dw[i] += sums[i], a pack of dw a thread.
constexpr int kSumThreads = 256;
template <typename T>
__global__ void AddSums(const float* sums, int64_t n, bool packs, T* dw) {
  constexpr int kWide = kPack<T>;
  const int64_t at = kWide * (int64_t{blockIdx.x} * kSumThreads + threadIdx.x);
  if (packs && at + kWide <= n) {
    Pack<float> from[kWide / kPack<float>];
#pragma unroll
    for (int i = 0; i < kWide / kPack<float>; ++i) {
      from[i] = reinterpret_cast<const Pack<float>*>(sums + at)[i];
    }
    Pack<T> to = *reinterpret_cast<const Pack<T>*>(dw + at);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      to.at[e] = FromFloat<T>(ToFloat(to.at[e]) + from[e / kPack<float>].at[e % kPack<float>]);
    }
    *reinterpret_cast<Pack<T>*>(dw + at) = to;
  } else {
    for (int64_t i = at; i < at + kWide && i < n; ++i) {
      dw[i] = FromFloat<T>(ToFloat(dw[i]) + sums[i]);
    }
  }
}

}  // namespace

void HeadLossCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& w,
                  const ConstView& targets, const ConstView& weights, float scale,
                  const std::optional<ConstView>& loss_scale, const View& loss,
                  const std::optional<View>& dx, const std::optional<View>& dw,
                  const HeadLossBuffers& buffers) {
  const int64_t all_rows = x.shape[0], cols = x.shape[1], vocab = w.shape[0];
  const View& logits = buffers.logits;
  const int64_t chunk = logits.shape[0], stride = logits.shape[1];
  double* const terms = reinterpret_cast<double*>(buffers.terms.data);
  const View* const sums = buffers.dw_sums ? &*buffers.dw_sums : nullptr;
  for (int64_t first = 0; first < all_rows; first += chunk) {
    const int64_t rows = std::min(chunk, all_rows - first), begin = first * cols;
    Gemm(stream, rows, vocab, cols, Factor(x, begin, cols), Transposed(w, 0, cols),
         Result(logits, 0, stride));
    const LossRow args{.vocab = vocab,
                       .stride = stride,
                       .targets = targets.As<int32_t>() + first,
                       .weights = weights.As<float>() + first,
                       .loss_scale = loss_scale ? loss_scale->As<float>() : nullptr,
                       .terms = terms + first,
                       .scale = scale,
                       .with_gradient = dx.has_value()};
    ForFloat(logits.dtype, [&](auto is) {
      using T = typename decltype(is)::type;
      const int64_t warps = CeilDiv(vocab, kPack<T> * kWarp);
      const auto threads = std::min<int64_t>(kMostThreads, warps * kWarp);
      Launch<LossOfRows<T>>(stream, dim3(rows), dim3(threads), 0, logits.As<T>(), args);
    });
    if (!dx) continue;
    if (dw) {
      const GemmResult sum = Result(sums != nullptr ? *sums : *dw, 0, cols);
      Gemm(stream, vocab, cols, rows, Transposed(logits, 0, stride), Factor(x, begin, cols), sum,
           {.added = sums == nullptr || first > 0 ? sum.data : nullptr});
    }
    Gemm(stream, rows, cols, vocab, Factor(logits, 0, stride), Factor(w, 0, cols),
         Result(*dx, begin, cols));
  }
  if (sums != nullptr) {
    const auto add = [&](auto* to) {
      using T = std::remove_pointer_t<decltype(to)>;
      const int64_t n = vocab * cols;
      Launch<AddSums<T>>(stream, dim3(CeilDiv(n, kPack<T> * kSumThreads)), dim3(kSumThreads), 0,
                         sums->As<float>(), n, IsAligned(sums->data) && IsAligned(to), to);
    };
    dw->dtype == DType::kBFloat16 ? add(dw->As<__nv_bfloat16>()) : add(dw->As<__half>());
  }
  Launch<AddTerms>(stream, dim3(1), dim3(kTermThreads), 0, terms, all_rows, scale,
                   loss.As<float>());
}

}  // namespace fsdp
