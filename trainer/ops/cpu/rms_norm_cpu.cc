#include "trainer/ops/cpu/rms_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

void ForwardRow(const float* x, const float* w, float eps, int64_t cols, float* y, float* r_out) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < cols; ++j) squares += x[j] * x[j];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) y[j] = w[j] * (x[j] * r);
  *r_out = r;
}

// dx may be dy: an element of dy is read before its dx is written. dw is not.
template <bool kAdd>
void BackwardRow(const float* x, const float* w, float r, const float* dy, int64_t cols, float* dx,
                 float* __restrict dw) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = x[j] * r;
    dot += w[j] * dy[j] * xhat;
    dw[j] += dy[j] * xhat;
  }
  const float mean = dot / static_cast<float>(cols);
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) {
    const float d = r * (w[j] * dy[j] - x[j] * r * mean);
    dx[j] = kAdd ? dx[j] + d : d;
  }
}

}  // namespace

void RmsNormForwardCpu(ThreadPool& pool, const NormShape& s, const NormRows<ConstView>& x,
                       const ConstView& w, float eps, const NormRows<View>& y, const View& r) {
  pool.ParallelFor(s.rows(), 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(x.tensor.dtype, 3, s.cols);
    const float* const weight = ReadFloats(w, 0, s.cols, buffers[0]);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = s.At(i, y);
      float* out = FloatsToWrite(y.tensor, to, buffers[2]);
      ForwardRow(ReadFloats(x.tensor, s.At(i, x), s.cols, buffers[1]), weight, eps, s.cols, out,
                 r.As<float>() + i);
      WriteFloats(out, s.cols, y.tensor, to);
    }
  });
}

void RmsNormBackwardCpu(ThreadPool& pool, const NormShape& s, const NormRows<ConstView>& x,
                        const ConstView& w, const ConstView& r, const NormRows<ConstView>& dy,
                        int64_t blocks, bool add, const NormRows<View>& dx,
                        const std::optional<View>& dw, const View& workspace) {
  float* const partial = workspace.As<float>();
  const int64_t rows = s.rows();
  pool.ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
    RowBuffers buffers(x.tensor.dtype, 4, s.cols);
    const float* const weight = ReadFloats(w, 0, s.cols, buffers[0]);
    for (int64_t block = first; block < last; ++block) {
      float* block_dw = partial + block * s.cols;
      std::fill(block_dw, block_dw + s.cols, 0.0f);
      for (int64_t i = rows * block / blocks; i < rows * (block + 1) / blocks; ++i) {
        const int64_t to = s.At(i, dx);
        float* out = add ? FloatsToChange(dx.tensor, to, s.cols, buffers[3])
                         : FloatsToWrite(dx.tensor, to, buffers[3]);
        (add ? BackwardRow<true>
             : BackwardRow<false>)(ReadFloats(x.tensor, s.At(i, x), s.cols, buffers[1]), weight,
                                   r.As<float>()[i],
                                   ReadFloats(dy.tensor, s.At(i, dy), s.cols, buffers[2]), s.cols,
                                   out, block_dw);
        WriteFloats(out, s.cols, dx.tensor, to);
      }
    }
  });
  if (!dw) return;
  // The first block's sum takes the others' in order; then the whole is added once.
  pool.ParallelFor(s.cols, 64, [&](int64_t begin, int64_t end) {
    for (int64_t block = 1; block < blocks; ++block) {
      const float* next = partial + block * s.cols;
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) partial[j] += next[j];
    }
    AddFloats(partial + begin, end - begin, *dw, begin);
  });
}

}  // namespace fsdp
