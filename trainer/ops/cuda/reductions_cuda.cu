#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/reductions_backends.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

constexpr int64_t kChunk = kSquaresChunk;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kWarps = kSquaresWarps, kThreads = kWarps * kWarp;

template <typename T>
__device__ Pack<T> LoadPack(const T* x, int64_t at, int64_t n, bool packs) {
  if (packs && at + kPack<T> <= n) return *reinterpret_cast<const Pack<T>*>(x + at);
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) pack.at[i] = at + i < n ? x[at + i] : FromFloat<T>(0.0f);
  return pack;
}

// Each block has the chunks of its group, each warp every kWarps-th of them. scale: null for 1;
// then nothing is counted.
template <typename T, bool kUnscales>
__global__ void __launch_bounds__(kThreads)
    SumSquaresOfGroups(const T* x, int64_t n, bool packs, const float* scale,
                       SquaresOfGroup* groups) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunks = CeilDiv(n, kChunk);
  const int64_t end = chunks * (blockIdx.x + 1) / gridDim.x;
  const double inverse = kUnscales ? 1 / static_cast<double>(*scale) : 1;
  double sum = 0;
  int not_finite = 0;
  for (int64_t c = chunks * blockIdx.x / gridDim.x + warp; c < end; c += kWarps) {
    float chunk = 0;
#pragma unroll
    for (int part = 0; part < kChunk / (kWarp * kPack<T>); ++part) {
      const int64_t at = c * kChunk + (part * kWarp + lane) * kPack<T>;
      const Pack<T> pack = LoadPack(x, at, n, packs);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        float value = ToFloat(pack.at[i]);
        if constexpr (kUnscales) {
          not_finite += IsFinite(value) ? 0 : 1;
          value = static_cast<float>(value * inverse);
        }
        chunk = __fmaf_rn(value, value, chunk);
      }
    }
    sum += WarpSum(chunk);
  }
  __shared__ double sums[kWarps];
  __shared__ int counts[kWarps];
  if constexpr (kUnscales) not_finite = WarpSum(not_finite);
  if (lane == 0) sums[warp] = sum, counts[warp] = not_finite;
  __syncthreads();
  if (threadIdx.x > 0) return;
  SquaresOfGroup group = {0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) group.sum += sums[w], group.not_finite += counts[w];
  groups[blockIdx.x] = group;
}

// One block. found: null where nothing was counted.
__global__ void __launch_bounds__(kThreads)
    AddSquaresOfGroups(const SquaresOfGroup* groups, int count, float* out, float* found) {
  SquaresOfGroup mine = {0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    mine.sum += groups[i].sum;
    mine.not_finite += groups[i].not_finite;
  }
  __shared__ double sums[kWarps];
  __shared__ int64_t counts[kWarps];
  const double sum = BlockSum(mine.sum, sums);
  const int64_t not_finite = BlockSum(mine.not_finite, counts);
  if (threadIdx.x > 0) return;
  *out = static_cast<float>(*out + sum);
  if (found != nullptr) *found += static_cast<float>(not_finite);
}

template <bool kUnscales>
void AddSquares(CudaStreamHandle stream, const ConstView& x, const float* scale, float* out,
                float* found, SquaresOfGroup* groups) {
  const int64_t n = x.NumElements();
  const auto count = static_cast<unsigned>(SquaresGroups(n));
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<SumSquaresOfGroups<T, kUnscales>>(stream, count, kThreads, 0, x.As<T>(), n,
                                             IsAligned(x.data), scale, groups);
  });
  Launch<AddSquaresOfGroups>(stream, 1, kThreads, 0, groups, static_cast<int>(count), out, found);
}

__global__ void ClipCoefficientKernel(const float* loss, const float* sum_of_squares,
                                      const float* mean_scale, const float* loss_scale,
                                      const float* found_inf, float max_norm, float* norm,
                                      float* coefficient) {
  float c = *mean_scale;
  float n = __fmul_rn(sqrtf(*sum_of_squares), c);
  if (found_inf != nullptr && *found_inf != 0) n = kInfinity;
  if (max_norm > 0) c *= fminf(1.0f, max_norm / (n + 1e-6f));
  if (loss_scale != nullptr) c = static_cast<float>(c / static_cast<double>(*loss_scale));
  const bool lands = IsFinite(n) && IsFinite(*loss);
  *norm = n;
  *coefficient = lands ? c : kNaN;
}

}  // namespace

void SumOfSquaresCuda(CudaStreamHandle stream, const ConstView& x, const View& out,
                      const View& workspace) {
  AddSquares<false>(stream, x, nullptr, out.As<float>(), nullptr, workspace.As<SquaresOfGroup>());
}

void UnscaledSumOfSquaresCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& scale,
                              const View& out, const View& found, const View& workspace) {
  AddSquares<true>(stream, x, scale.As<float>(), out.As<float>(), found.As<float>(),
                   workspace.As<SquaresOfGroup>());
}

void ClipCoefficientCuda(CudaStreamHandle stream, const ConstView& loss,
                         const ConstView& sum_of_squares, const ConstView& mean_scale,
                         const std::optional<ConstView>& loss_scale,
                         const std::optional<ConstView>& found_inf, float max_norm,
                         const View& norm, const View& coefficient) {
  Launch<ClipCoefficientKernel>(stream, 1, 1, 0, loss.As<float>(), sum_of_squares.As<float>(),
                                mean_scale.As<float>(), DataOrNull<float>(loss_scale),
                                DataOrNull<float>(found_inf), max_norm, norm.As<float>(),
                                coefficient.As<float>());
}

}  // namespace fsdp
