#include "trainer/ops/cuda/gelu_cuda.h"
#include "trainer/ops/cuda/gelu_element.h"
#include "trainer/ops/cuda/launch.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256;

// Each thread has kPack<T> elements: one access where `packs`, but for the last ones.
template <typename T>
__device__ Pack<T> Read(const T* from, int64_t n, bool packs) {
  if (packs && n >= kPack<T>) return *reinterpret_cast<const Pack<T>*>(from);
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) pack.at[i] = i < n ? from[i] : FromFloat<T>(0.0f);
  return pack;
}
template <typename T>
__device__ void Write(const Pack<T>& pack, T* to, int64_t n, bool packs) {
  if (packs && n >= kPack<T>) {
    *reinterpret_cast<Pack<T>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < n) to[i] = pack.at[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluForwardElements(const T* x, int64_t n, bool packs, T* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  Pack<T> pack = Read(x + first, n - first, packs);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) pack.at[i] = FromFloat<T>(GeluOf(ToFloat(pack.at[i])));
  Write(pack, y + first, n - first, packs);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluBackwardElements(const T* x, const T* dy, int64_t n, bool packs, T* dx) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  const Pack<T> at = Read(x + first, n - first, packs);
  Pack<T> pack = Read(dy + first, n - first, packs);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    pack.at[i] = FromFloat<T>(GeluGradient(ToFloat(at.at[i]), ToFloat(pack.at[i])));
  }
  Write(pack, dx + first, n - first, packs);
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
