#include "trainer/ops/cpu/activation_kernels.h"

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/sigmoid_element.h"

namespace fsdp {
namespace {

FSDP_ALWAYS_INLINE float ToFloat(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

// As BFloat16 does it.
FSDP_ALWAYS_INLINE uint16_t ToBf16(float x) {
  const auto u = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}

struct Gelu {
  static FSDP_ALWAYS_INLINE float Forward(float x) { return x * GeluSigmoidAt(x).s; }
  static FSDP_ALWAYS_INLINE float Backward(float x, float dy) {
    const GeluSigmoid f = GeluSigmoidAt(x);
    // Written out: left to itself, the compiler may fuse this sum with e r, too, and does so in a
    // loop's tail.
    return dy * __builtin_fmaf(x, f.slope, f.s);
  }
};

// A NaN is not <= 0.
struct Relu {
  static FSDP_ALWAYS_INLINE float Forward(float x) { return x <= 0.0f ? 0.0f : x; }
  static FSDP_ALWAYS_INLINE float Backward(float y, float dy) { return y <= 0.0f ? 0.0f : dy; }
};

// A NaN passes through.
struct SigmoidOf {
  static FSDP_ALWAYS_INLINE float Forward(float x) { return SigmoidAt(x).s; }
  static FSDP_ALWAYS_INLINE float Backward(float y, float dy) { return dy * (y * (1.0f - y)); }
};

struct GeluExact {
  static FSDP_ALWAYS_INLINE float Forward(float x) { return x * NormalAt(x).below; }
  static FSDP_ALWAYS_INLINE float Backward(float x, float dy) {
    const Normal f = NormalAt(x);
    return dy * __builtin_fmaf(x, f.density, f.below);
  }
};

template <typename F>
void Forward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = F::Forward(x[i]);
}

template <typename F>
void Backward(const float* saved, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = F::Backward(saved[i], dy[i]);
}

template <typename F>
void ForwardBf16(const uint16_t* x, int64_t n, uint16_t* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = ToBf16(F::Forward(ToFloat(x[i])));
}

template <typename F>
void BackwardBf16(const uint16_t* saved, const uint16_t* dy, int64_t n, uint16_t* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = ToBf16(F::Backward(ToFloat(saved[i]), ToFloat(dy[i])));
}

template <typename F>
constexpr ActivationKernels kOf = {Forward<F>, Backward<F>, ForwardBf16<F>, BackwardBf16<F>};

}  // namespace

const ActivationKernels FSDP_ISA(kActivations)[kActivations] = {
    kOf<Gelu>,
    kOf<Relu>,
    kOf<SigmoidOf>,
    kOf<GeluExact>,
};

}  // namespace fsdp
