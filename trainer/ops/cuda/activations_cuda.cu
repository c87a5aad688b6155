#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/gelu_element.h"
#include "trainer/ops/element_backends.h"
#include "trainer/ops/normal_tail.h"

namespace fsdp {
namespace {

// The standard normal distribution: the same functions as in cpu/vector_math.h.
struct Normal {
  float below;    // Phi(x) = (1 + erf(x / sqrt 2)) / 2.
  float density;  // phi(x) = e^(-x^2 / 2) / sqrt(2 pi).
};

// A NaN passes through.
__device__ inline Normal NormalAt(float x) {
  using Tail = NormalTail;
  float a = fabsf(x);
  a = a > 16.0f ? 16.0f : a;  // Its square must not overflow.
  const float t = __fdividef(1.0f, __fmaf_rn(Tail::kScale, a, 1.0f));
  float p = __fmaf_rn(Tail::kP9, t, Tail::kP8);
  p = __fmaf_rn(p, t, Tail::kP7);
  p = __fmaf_rn(p, t, Tail::kP6);
  p = __fmaf_rn(p, t, Tail::kP5);
  p = __fmaf_rn(p, t, Tail::kP4);
  p = __fmaf_rn(p, t, Tail::kP3);
  p = __fmaf_rn(p, t, Tail::kP2);
  p = __fmaf_rn(p, t, Tail::kP1);
  p = __fmaf_rn(p, t, Tail::kP0);
  // The square is rounded by up to 87 ulp of e, which `rest` gives back.
  const float square = __fmul_rn(a, a), rest = __fmaf_rn(a, a, -square);
  float e = expf(-0.5f * square);
  e = __fmaf_rn(e, -0.5f * rest, e);
  const float tail = e * (t * p);
  return {x < 0.0f ? tail : 1.0f - tail, Tail::kDensity * e};
}

constexpr int kThreads = 256;

struct Gelu {
  __device__ static float Forward(float x) { return GeluOf(x); }
  __device__ static float Backward(float x, float dy) { return GeluGradient(x, dy); }
};
// A NaN is not <= 0.
struct Relu {
  __device__ static float Forward(float x) { return x <= 0.0f ? 0.0f : x; }
  __device__ static float Backward(float y, float dy) { return y <= 0.0f ? 0.0f : dy; }
};
// exp(-x) may be infinite: s is 0 then. A NaN passes through.
struct Sigmoid {
  __device__ static float Forward(float x) { return 1.0f / (1.0f + expf(-x)); }
  __device__ static float Backward(float y, float dy) { return dy * (y * (1.0f - y)); }
};
struct GeluExact {
  __device__ static float Forward(float x) { return x * NormalAt(x).below; }
  __device__ static float Backward(float x, float dy) {
    const Normal f = NormalAt(x);
    return dy * __fmaf_rn(x, f.density, f.below);
  }
};

// A pack for each thread.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    ActivationForwardElements(const T* x, int64_t n, bool packs, T* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  Elements<T, kPack<T>> elements;
  elements.Read(x + first, n - first, packs);
  float results[kPack<T>];
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) results[i] = F::Forward(elements[i]);
  elements.Set(results);
  elements.Write(y + first, n - first, packs);
}

template <typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    ActivationBackwardElements(const T* saved, const T* dy, int64_t n, bool packs, T* dx) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>;
  if (first >= n) return;
  Elements<T, kPack<T>> at, gradient;
  at.Read(saved + first, n - first, packs);
  gradient.Read(dy + first, n - first, packs);
  float results[kPack<T>];
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) results[i] = F::Backward(at[i], gradient[i]);
  gradient.Set(results);
  gradient.Write(dx + first, n - first, packs);
}

template <typename T>
dim3 GridOf(int64_t n) {
  return static_cast<unsigned>(CeilDiv(n, int64_t{kThreads} * kPack<T>));
}

// call(Is<F>(), Is<T>()) for the function and the type of elements.
template <typename Call>
void ForActivation(Activation f, DType dtype, const Call& call) {
  ForFloat(dtype, [&](auto type) {
    switch (f) {
      case Activation::kGelu:
        return call(Is<Gelu>(), type);
      case Activation::kRelu:
        return call(Is<Relu>(), type);
      case Activation::kSigmoid:
        return call(Is<Sigmoid>(), type);
      case Activation::kGeluExact:
        return call(Is<GeluExact>(), type);
    }
  });
}

}  // namespace

void ActivationForwardCuda(CudaStreamHandle stream, Activation f, const ConstView& x,
                           const View& y) {
  ForActivation(f, x.dtype, [&](auto function, auto type) {
    using F = typename decltype(function)::type;
    using T = typename decltype(type)::type;
    const int64_t n = x.NumElements();
    const bool packs = IsAligned(x.data) && IsAligned(y.data);
    Launch<ActivationForwardElements<F, T>>(stream, GridOf<T>(n), kThreads, 0, x.As<T>(), n, packs,
                                            y.As<T>());
  });
}

void ActivationBackwardCuda(CudaStreamHandle stream, Activation f, const ConstView& saved,
                            const ConstView& dy, const View& dx) {
  ForActivation(f, saved.dtype, [&](auto function, auto type) {
    using F = typename decltype(function)::type;
    using T = typename decltype(type)::type;
    const int64_t n = saved.NumElements();
    const bool packs = IsAligned(saved.data) && IsAligned(dy.data) && IsAligned(dx.data);
    Launch<ActivationBackwardElements<F, T>>(stream, GridOf<T>(n), kThreads, 0, saved.As<T>(),
                                             dy.As<T>(), n, packs, dx.As<T>());
  });
}

}  // namespace fsdp
