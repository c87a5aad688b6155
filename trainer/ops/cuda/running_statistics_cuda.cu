#include <algorithm>
#include <type_traits>

#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/running_statistics_cuda.h"

namespace fsdp {
namespace {

constexpr int kRowsAtOnce = 8;  // Per block: each by a warp, with a column for each lane.

template <typename T>
__global__ void UpdateRunningMeanKernel(const T* x, const float* weights, int64_t rows,
                                        int64_t columns, float momentum, float* running) {
  __shared__ double sums[kRowsAtOnce][kWarp];
  __shared__ int64_t counts[kRowsAtOnce];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  double sum = 0;
  int64_t counted = 0;
  for (int64_t row = warp; row < rows; row += kRowsAtOnce) {
    if (weights[row] == 0) continue;
    ++counted;
    if (column < columns) sum += ToFloat(x[row * columns + column]);
  }
  sums[warp][lane] = sum;
  if (lane == 0) counts[warp] = counted;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  for (int w = 1; w < kRowsAtOnce; ++w) {
    sum += sums[w][lane];
    counted += counts[w];
  }
  if (counted == 0) return;
  const double before = running[column];
  const double mean = sum / static_cast<double>(counted);
  running[column] = static_cast<float>(before + momentum * (mean - before));
}

__global__ void CountBatchKernel(int64_t* count) { *count += 1; }

template <typename T>
__global__ void TakeUnlessNaNKernel(const float* coefficient, float divisor, const T* from, T* to,
                                    int64_t n) {
  const float number = *coefficient;
  if (number != number) return;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    if constexpr (std::is_same_v<T, float>) {
      to[i] = from[i] / divisor;
    } else {
      to[i] = from[i];
    }
  }
}

template <typename T>
void Take(CudaStreamHandle stream, const ConstView& coefficient, float divisor,
          const ConstView& from, const View& to) {
  constexpr int64_t kThreads = 256, kMostBlocks = 1024;
  const int64_t n = to.NumElements();
  const auto blocks = static_cast<unsigned>(std::min(CeilDiv(n, kThreads), kMostBlocks));
  Launch<TakeUnlessNaNKernel<T>>(stream, blocks, static_cast<unsigned>(kThreads), 0,
                                 coefficient.As<float>(), divisor, from.As<T>(), to.As<T>(), n);
}

}  // namespace

void UpdateRunningMeanCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& weights,
                           float momentum, const View& running) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<UpdateRunningMeanKernel<T>>(stream, static_cast<unsigned>(CeilDiv(columns, kWarp)),
                                       dim3(kWarp, kRowsAtOnce), 0,
                                       reinterpret_cast<const T*>(x.data), weights.As<float>(),
                                       rows, columns, momentum, running.As<float>());
  });
}

void CountBatchCuda(CudaStreamHandle stream, const View& count) {
  Launch<CountBatchKernel>(stream, 1, 1, 0, count.As<int64_t>());
}

void TakeUnlessNaNCuda(CudaStreamHandle stream, const ConstView& coefficient, float divisor,
                       const ConstView& from, const View& to) {
  if (to.dtype == DType::kInt64) return Take<int64_t>(stream, coefficient, 1, from, to);
  Take<float>(stream, coefficient, divisor, from, to);
}

}  // namespace fsdp
