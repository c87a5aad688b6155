// The standard normal distribution, for the kernels of ops: the same functions as in
// cpu/vector_math.h.
// Tests: tests/trainer/ops/activations_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_NORMAL_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_NORMAL_H_

#include <cuda_runtime.h>

#include "trainer/ops/normal_tail.h"

namespace fsdp {

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_NORMAL_H_
