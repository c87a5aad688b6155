#include "trainer/ops/cpu/swiglu_cpu.h"

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/sigmoid_element.h"

namespace fsdp {
namespace {

void Forward(const float* gate, const float* up, int64_t n, float* out) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) out[j] = gate[j] * SigmoidAt(gate[j]).s * up[j];
}

// dgate and dup may be gate and up.
void Backward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate,
              float* dup) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const float g = gate[j], u = up[j];  // Read before they are written over.
    const Sigmoid f = SigmoidAt(g);
    dgate[j] = dy[j] * u * f.s * (1.0f + g * f.rest);
    dup[j] = dy[j] * g * f.s;
  }
}

}  // namespace

void SwigluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  const int64_t rows = y.shape[0], inner = y.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, out;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float* to = FloatsToWrite(y, i * inner + j, out);
        Forward(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up), n, to);
        WriteFloats(to, n, y, i * inner + j);
      });
    }
  });
}

void SwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  const int64_t rows = dy.shape[0], inner = dy.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, d, dgate, dup;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float *to_gate = FloatsToWrite(dx, at, dgate), *to_up = FloatsToWrite(dx, at + inner, dup);
        Backward(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up),
                 ReadFloats(dy, i * inner + j, n, d), n, to_gate, to_up);
        WriteFloats(to_gate, n, dx, at);
        WriteFloats(to_up, n, dx, at + inner);
      });
    }
  });
}

}  // namespace fsdp
