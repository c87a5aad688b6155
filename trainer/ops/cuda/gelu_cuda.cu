#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/gelu_cuda.h"
#include "trainer/ops/cuda/gelu_element.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256;

// A pack for each thread.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluForwardElements(const T* x, int64_t n, bool packs, T* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  Elements<T, kPack<T>> elements;
  elements.Read(x + first, n - first, packs);
  float results[kPack<T>];
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) results[i] = GeluOf(elements[i]);
  elements.Set(results);
  elements.Write(y + first, n - first, packs);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluBackwardElements(const T* x, const T* dy, int64_t n, bool packs, T* dx) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  Elements<T, kPack<T>> at, gradient;
  at.Read(x + first, n - first, packs);
  gradient.Read(dy + first, n - first, packs);
  float results[kPack<T>];
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) results[i] = GeluGradient(at[i], gradient[i]);
  gradient.Set(results);
  gradient.Write(dx + first, n - first, packs);
}

template <typename T>
dim3 GridOf(int64_t n) {
  return static_cast<unsigned>(CeilDiv(n, int64_t{kThreads} * kPack<T>));
}

}  // namespace

void GeluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = x.NumElements();
    const bool packs = IsAligned(x.data) && IsAligned(y.data);
    Launch<GeluForwardElements<T>>(stream, GridOf<T>(n), kThreads, 0, x.As<T>(), n, packs,
                                   y.As<T>());
  });
}

void GeluBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& dy,
                      const View& dx) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = x.NumElements();
    const bool packs = IsAligned(x.data) && IsAligned(dy.data) && IsAligned(dx.data);
    Launch<GeluBackwardElements<T>>(stream, GridOf<T>(n), kThreads, 0, x.As<T>(), dy.As<T>(), n,
                                    packs, dx.As<T>());
  });
}

}  // namespace fsdp
