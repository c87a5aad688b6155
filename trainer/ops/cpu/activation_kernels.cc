#include "trainer/ops/cpu/activation_kernels.h"

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/sigmoid_element.h"

namespace fsdp {
namespace {

void GeluForward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * GeluSigmoidAt(x[i]).s;
}

void GeluBackward(const float* x, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const GeluSigmoid f = GeluSigmoidAt(x[i]);
    // Written out: left to itself, the compiler may fuse this sum with e r, too, and does so in a
    // loop's tail.
    dx[i] = dy[i] * __builtin_fmaf(x[i], f.slope, f.s);
  }
}

// A NaN is not <= 0.
void ReluForward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

void ReluBackward(const float* y, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
}

// A NaN passes through.
void SigmoidForward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = SigmoidAt(x[i]).s;
}

void SigmoidBackward(const float* y, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (y[i] * (1.0f - y[i]));
}

void GeluExactForward(const float* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * NormalAt(x[i]).below;
}

void GeluExactBackward(const float* x, const float* dy, int64_t n, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Normal f = NormalAt(x[i]);
    dx[i] = dy[i] * __builtin_fmaf(x[i], f.density, f.below);
  }
}

}  // namespace

const ActivationKernels FSDP_ISA(kActivations)[kActivations] = {
    {GeluForward, GeluBackward},
    {ReluForward, ReluBackward},
    {SigmoidForward, SigmoidBackward},
    {GeluExactForward, GeluExactBackward},
};

}  // namespace fsdp
