#include "trainer/ops/cpu/swiglu_cpu.h"

#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

struct Sigmoid {
  float s, rest;  // 1 / (1 + exp(-g)), and what is missing to 1.
};

// A NaN passes through.
inline Sigmoid At(float g) {
  const float e = Exp(-__builtin_fabsf(g)), r = 1.0f / (1.0f + e);
  return {g < 0.0f ? e * r : r, g < 0.0f ? r : e * r};
}

}  // namespace

void SwigluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  const int64_t rows = y.shape[0], inner = y.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *gate = x.As<float>() + i * 2 * inner, *up = gate + inner;
      float* out = y.As<float>() + i * inner;
#pragma omp simd
      for (int64_t j = 0; j < inner; ++j) out[j] = gate[j] * At(gate[j]).s * up[j];
    }
  });
}

void SwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  const int64_t rows = dy.shape[0], inner = dy.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *gate = x.As<float>() + i * 2 * inner, *up = gate + inner;
      const float* d = dy.As<float>() + i * inner;
      float *dgate = dx.As<float>() + i * 2 * inner, *dup = dgate + inner;
#pragma omp simd
      for (int64_t j = 0; j < inner; ++j) {
        const float g = gate[j], u = up[j];  // Read before they are written over.
        const Sigmoid f = At(g);
        dgate[j] = d[j] * u * f.s * (1.0f + g * f.rest);
        dup[j] = d[j] * g * f.s;
      }
    }
  });
}

}  // namespace fsdp
