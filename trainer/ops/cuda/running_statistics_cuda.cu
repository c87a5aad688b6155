#include <algorithm>
#include <type_traits>

#include "trainer/ops/batch_norm_backends.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

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

__global__ void MeanOfKernel(const float* sums, const float* weight, float* mean, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) mean[i] = *weight == 0 ? 0 : sums[i] / *weight;
}

// One thread: a model has a few hundred experts, and a float64 sum in order is one number on every
// device.
__global__ void MoveBiasKernel(const float* coefficient, const float* loads, float rate,
                               float* bias, int64_t n) {
  const float number = *coefficient;
  if (number != number) return;
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += loads[e];
  const double mean = sum / static_cast<double>(n);
  for (int64_t e = 0; e < n; ++e) {
    const double lacks = mean - loads[e];
    if (lacks != 0) bias[e] += lacks > 0 ? rate : -rate;
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

void CountBatchCuda(CudaStreamHandle stream, const View& count) {
  Launch<CountBatchKernel>(stream, 1, 1, 0, count.As<int64_t>());
}

void TakeUnlessNaNCuda(CudaStreamHandle stream, const ConstView& coefficient, float divisor,
                       const ConstView& from, const View& to) {
  if (to.dtype == DType::kInt64) return Take<int64_t>(stream, coefficient, 1, from, to);
  Take<float>(stream, coefficient, divisor, from, to);
}

void MeanOfCuda(CudaStreamHandle stream, const ConstView& sums, const ConstView& weight,
                const View& mean) {
  constexpr int64_t kThreads = 256;
  const int64_t n = mean.NumElements();
  Launch<MeanOfKernel>(stream, static_cast<unsigned>(CeilDiv(n, kThreads)),
                       static_cast<unsigned>(kThreads), 0, sums.As<float>(), weight.As<float>(),
                       mean.As<float>(), n);
}

void MoveBiasCuda(CudaStreamHandle stream, const ConstView& coefficient, const ConstView& loads,
                  float rate, const View& bias) {
  Launch<MoveBiasKernel>(stream, 1, 1, 0, coefficient.As<float>(), loads.As<float>(), rate,
                         bias.As<float>(), loads.NumElements());
}

}  // namespace fsdp
