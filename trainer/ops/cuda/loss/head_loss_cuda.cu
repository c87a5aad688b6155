#include <algorithm>

#include "trainer/ops/cuda/attention/row_softmax.h"
#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/loss/loss_terms.h"
#include "trainer/ops/cuda/pieces_ahead.h"
#include "trainer/ops/loss_backends.h"

namespace fsdp {
namespace {

struct LossRow {
  int vocab;
  int64_t stride;
  const int32_t* targets;
  const float* weights;
  const float* loss_scale;  // Null: 1.
  double* terms;
  float scale;
  bool with_gradient;
};

// A row of logits per block: its term of the loss, and g in place of the logits. One pass finds the
// maximum and, beside it, the sum of e^(l - maximum). The thread whose turn it is handles the
// elements behind the last whole pack.
template <typename T>
__global__ void LossOfRows(T* logits, LossRow args) {
  constexpr int kWide = kPack<T>;
  using Piece = Elements<T, kWide>;
  __shared__ RowSoftmaxShared shared;
  const int64_t i = blockIdx.x;
  T* const row = logits + i * args.stride;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int packs = args.vocab / kWide, tail = args.vocab % kWide;
  const float weight = args.weights[i];
  if (weight == 0) {
    if (thread == 0) args.terms[i] = 0;
    if (!args.with_gradient) return;
    const Piece zeros = {};
    for (int pack = thread; pack < packs; pack += threads) zeros.WritePack(row, pack);
    if (thread < tail) row[packs * kWide + thread] = FromFloat<T>(0);
    return;
  }
  const int32_t target = args.targets[i];
  const float target_logit = ToFloat(row[target]);

  RunningSum mine;
  Piece ahead[kAhead];
  ForEachAhead(
      thread, packs, threads, [&](int pack, int slot) { ahead[slot].ReadPack(row, pack); },
      [&](int, int slot) { mine.Add(ahead[slot]); });
  if (tail > 0 && thread == packs % threads) {
    Piece last;
    last.ReadPack(row, packs);
    mine.Add(last, tail);
  }
  const RowSoftmax softmax = SoftmaxOfBlock(mine, shared);
  if (thread == 0) args.terms[i] = weight * softmax.NegativeLog(target_logit);
  if (!args.with_gradient) return;
  // g = factor (e - [target] sum).
  const float all = static_cast<float>(softmax.sum);
  const float gradient_scale = args.loss_scale == nullptr ? 1.0f : *args.loss_scale;
  const float factor = args.scale * weight / all * gradient_scale;
  const auto gradient = [&](Piece& pack) {
    float g[kWide];
#pragma unroll
    for (int e = 0; e < kWide; ++e) g[e] = factor * softmax.Power(pack[e]);
    pack.Set(g);
  };
  ForEachAhead(
      thread, packs, threads, [&](int pack, int slot) { ahead[slot].ReadPack(row, pack); },
      [&](int pack, int slot) {
        gradient(ahead[slot]);
        ahead[slot].WritePack(row, pack);
      });
  if (tail > 0 && thread == packs % threads) {
    Piece last;
    last.ReadPack(row, packs);
    gradient(last);
    last.WritePack(row, packs);
  }
  // By the thread that has written it.
  if (thread == target / kWide % threads) {
    row[target] = FromFloat<T>(factor * (softmax.Power(target_logit) - all));
  }
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
    const LossRow args{.vocab = static_cast<int>(vocab),
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
      const auto threads = std::min<int64_t>(kMostLossThreads, warps * kWarp);
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
  AddLossTerms(stream, terms, all_rows, scale, loss.As<float>());
}

}  // namespace fsdp
