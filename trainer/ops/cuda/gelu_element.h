// GELU of one element, for kernels: formulas in activations.h. Every sum is a written-out
// multiply-add, so that a compiler fuses the same ones wherever this is inlined. GELU in the
// epilogue of a product therefore gives the bits that it gives by itself.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_GELU_ELEMENT_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_GELU_ELEMENT_H_

#include <cuda_runtime.h>

namespace fsdp {

struct GeluSigmoid {
  float s;      // 1 / (1 + exp(-2u)).
  float slope;  // Its derivative by x: 2 s (1 - s) u'(x).
};

// Beyond |x| = 16 s is 0 or 1 to the last bit; x^3 must not overflow there. A NaN passes through.
__device__ inline GeluSigmoid GeluSigmoidAt(float x) {
  constexpr float kScale = 0.7978845608f;  // sqrt(2 / pi).
  constexpr float kCubic = 0.044715f;
  float v = x < -16.0f ? -16.0f : x;
  v = v > 16.0f ? 16.0f : v;
  const float u = kScale * v * __fmaf_rn(kCubic * v, v, 1.0f);
  const float e = expf(-2.0f * fabsf(u)), r = 1.0f / (1.0f + e);
  const float du = kScale * __fmaf_rn(3.0f * kCubic * v, v, 1.0f);
  return {v < 0.0f ? e * r : r, 2.0f * e * r * r * du};
}

__device__ inline float GeluOf(float x) { return x * GeluSigmoidAt(x).s; }
// dx, from x and dy.
__device__ inline float GeluGradient(float x, float dy) {
  const GeluSigmoid f = GeluSigmoidAt(x);
  return dy * __fmaf_rn(x, f.slope, f.s);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_GELU_ELEMENT_H_
