#include "trainer/ops/cpu/swiglu_cpu.h"

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gelu_element.h"
#include "trainer/ops/cpu/sigmoid_element.h"

namespace fsdp {
namespace {

// The gradients of g and of the value u.
struct Gradients {
  float gate, up;
};

struct Silu {
  FSDP_ALWAYS_INLINE static float Of(float g, float u) { return g * SigmoidAt(g).s * u; }
  FSDP_ALWAYS_INLINE static Gradients Backward(float g, float u, float dy) {
    const Sigmoid f = SigmoidAt(g);
    return {dy * u * f.s * (1.0f + g * f.rest), dy * g * f.s};
  }
};

// The slope and f(g) first: they vanish where g is beyond all bounds.
struct Gelu {
  FSDP_ALWAYS_INLINE static float Of(float g, float u) { return g * GeluSigmoidAt(g).s * u; }
  FSDP_ALWAYS_INLINE static Gradients Backward(float g, float u, float dy) {
    const GeluSigmoid f = GeluSigmoidAt(g);
    return {dy * __builtin_fmaf(g, f.slope, f.s) * u, g * f.s * dy};
  }
};

template <typename Gate>
void Forward(const float* gate, const float* up, int64_t n, float* out) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) out[j] = Gate::Of(gate[j], up[j]);
}

// dgate and dup may be gate and up.
template <typename Gate>
void Backward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate,
              float* dup) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const Gradients d = Gate::Backward(gate[j], up[j], dy[j]);
    dgate[j] = d.gate;
    dup[j] = d.up;
  }
}

template <typename Gate>
void ForwardRows(ThreadPool& pool, const ConstView& x, const View& y) {
  const int64_t rows = y.shape[0], inner = y.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, out;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float* to = FloatsToWrite(y, i * inner + j, out);
        Forward<Gate>(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up), n, to);
        WriteFloats(to, n, y, i * inner + j);
      });
    }
  });
}

template <typename Gate>
void BackwardRows(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  const int64_t rows = dy.shape[0], inner = dy.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, d, dgate, dup;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float *to_gate = FloatsToWrite(dx, at, dgate), *to_up = FloatsToWrite(dx, at + inner, dup);
        Backward<Gate>(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up),
                       ReadFloats(dy, i * inner + j, n, d), n, to_gate, to_up);
        WriteFloats(to_gate, n, dx, at);
        WriteFloats(to_up, n, dx, at + inner);
      });
    }
  });
}

}  // namespace

void SwigluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  ForwardRows<Silu>(pool, x, y);
}
void SwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  BackwardRows<Silu>(pool, x, dy, dx);
}

void GatedGeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  ForwardRows<Gelu>(pool, x, y);
}
void GatedGeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy,
                          const View& dx) {
  BackwardRows<Gelu>(pool, x, dy, dx);
}

}  // namespace fsdp
