#include "trainer/ops/cpu/layer_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

void ForwardRow(const float* x, const float* w, const float* b, float eps, int64_t cols, float* y,
                float* mean, float* rstd) {
  const float scale = 1.0f / static_cast<float>(cols);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < cols; ++j) sum += x[j];
  const float m = sum * scale;
  // A second pass, not mean(x^2) - mean^2: that loses every digit where the mean is large.
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < cols; ++j) squares += (x[j] - m) * (x[j] - m);
  const float r = 1.0f / std::sqrt(squares * scale + eps);
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) y[j] = (x[j] - m) * r * w[j] + b[j];
  *mean = m;
  *rstd = r;
}

// dx may be dy: an element of dy is read before its dx is written. dw and db are not.
template <bool kAdd>
void BackwardRow(const float* x, const float* w, float mean, float rstd, const float* dy,
                 int64_t cols, float* dx, float* __restrict dw, float* __restrict db) {
  const float scale = 1.0f / static_cast<float>(cols);
  float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = (x[j] - mean) * rstd, g = w[j] * dy[j];
    sum += g;
    dot += g * xhat;
    dw[j] += dy[j] * xhat;
    db[j] += dy[j];
  }
  const float mean_g = sum * scale, mean_gx = dot * scale;
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j) {
    const float xhat = (x[j] - mean) * rstd;
    const float d = rstd * (w[j] * dy[j] - mean_g - xhat * mean_gx);
    dx[j] = kAdd ? dx[j] + d : d;
  }
}

}  // namespace

void LayerNormForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& w,
                         const ConstView& b, float eps, const View& y, const View& mean,
                         const View& rstd) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(x.dtype, 4, cols);
    const float* const weight = ReadFloats(w, 0, cols, buffers[0]);
    const float* const bias = ReadFloats(b, 0, cols, buffers[1]);
    for (int64_t i = begin; i < end; ++i) {
      float* out = FloatsToWrite(y, i * cols, buffers[3]);
      ForwardRow(ReadFloats(x, i * cols, cols, buffers[2]), weight, bias, eps, cols, out,
                 mean.As<float>() + i, rstd.As<float>() + i);
      WriteFloats(out, cols, y, i * cols);
    }
  });
}

void LayerNormBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& w,
                          const ConstView& mean, const ConstView& rstd, const ConstView& dy,
                          int64_t blocks, bool add, const View& dx, const std::optional<View>& dw,
                          const std::optional<View>& db, const View& workspace) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  float* const partial = workspace.As<float>();
  pool.ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
    RowBuffers buffers(x.dtype, 4, cols);
    const float* const weight = ReadFloats(w, 0, cols, buffers[0]);
    for (int64_t block = first; block < last; ++block) {
      float* block_dw = partial + block * 2 * cols;
      float* block_db = block_dw + cols;
      std::fill(block_dw, block_dw + 2 * cols, 0.0f);
      for (int64_t i = rows * block / blocks; i < rows * (block + 1) / blocks; ++i) {
        const int64_t at = i * cols;
        float* out =
            add ? FloatsToChange(dx, at, cols, buffers[3]) : FloatsToWrite(dx, at, buffers[3]);
        (add ? BackwardRow<true> : BackwardRow<false>)(ReadFloats(x, at, cols, buffers[1]), weight,
                                                       mean.As<float>()[i], rstd.As<float>()[i],
                                                       ReadFloats(dy, at, cols, buffers[2]), cols,
                                                       out, block_dw, block_db);
        WriteFloats(out, cols, dx, at);
      }
    }
  });
  // The first block's sums take the others' in order; then the whole is added once.
  pool.ParallelFor(cols, 64, [&](int64_t begin, int64_t end) {
    for (int part = 0; part < 2; ++part) {
      const std::optional<View>& out = part == 0 ? dw : db;
      if (!out) continue;
      float* sum = partial + part * cols;
      for (int64_t block = 1; block < blocks; ++block) {
        const float* next = partial + (2 * block + part) * cols;
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) sum[j] += next[j];
      }
      AddFloats(sum + begin, end - begin, *out, begin);
    }
  });
}

}  // namespace fsdp
