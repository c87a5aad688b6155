#include "trainer/ops/cpu/gelu_kernels.h"

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

constexpr float kScale = 0.7978845608f;  // sqrt(2 / pi).
constexpr float kCubic = 0.044715f;

struct Sigmoid {
  float s;      // 1 / (1 + exp(-2u)).
  float slope;  // Its derivative by x: 2 s (1 - s) u'(x).
};

// Beyond |x| = 16 s is 0 or 1 to the last bit; x^3 must not overflow there. A NaN passes through.
FSDP_ALWAYS_INLINE Sigmoid At(float x) {
  float v = x < -16.0f ? -16.0f : x;
  v = v > 16.0f ? 16.0f : v;
  const float u = kScale * v * (1.0f + kCubic * v * v);
  const float e = Exp(-2.0f * __builtin_fabsf(u)), r = 1.0f / (1.0f + e);
  const float du = kScale * (1.0f + 3.0f * kCubic * v * v);
  return {v < 0.0f ? e * r : r, 2.0f * e * r * r * du};
}

void Forward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * At(x[i]).s;
}

void Backward(const float* x, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Sigmoid f = At(x[i]);
    // Written out: left to itself, the compiler may fuse this sum with e r, too, and does so in a
    // loop's tail.
    dx[i] = dy[i] * __builtin_fmaf(x[i], f.slope, f.s);
  }
}

}  // namespace

const GeluKernels FSDP_ISA(kGelu) = {Forward, Backward};

}  // namespace fsdp
