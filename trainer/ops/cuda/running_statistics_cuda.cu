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

}  // namespace fsdp
