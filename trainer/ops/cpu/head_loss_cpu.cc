#include "trainer/ops/cpu/head_loss_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm.h"
#include "trainer/ops/cpu/head_loss_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

// Threads that compute other columns of the same row do so, too: the order makes no difference.
void RaiseTo(float& max, float value) {
  const std::atomic_ref<float> shared(max);
  float before = shared.load(std::memory_order_relaxed);
  while (value > before &&
         !shared.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// Multiplies floats by `factor`, in place, as elements of this dtype: bf16 and fp16 take the first
// half of the memory.
void ScaleTo(DType dtype, float factor, int64_t n, float* row) {
  const View to(reinterpret_cast<std::byte*>(row), dtype, {n});
  FloatPiece buffer;
  ForEachPiece(dtype, 0, n, [&](int64_t first, int64_t count) {
    float* scaled = FloatsToWrite(to, first, buffer);
#pragma omp simd
    for (int64_t v = 0; v < count; ++v) scaled[v] = factor * row[first + v];
    WriteFloats(scaled, count, to, first);
  });
}

}  // namespace

void HeadLossCpu(ThreadPool& pool, const HeadLossShape& s, const ConstView& x, const ConstView& w,
                 const ConstView& targets_view, const ConstView& weights_view, float scale,
                 const std::optional<ConstView>& loss_scale, const View& loss,
                 const std::optional<View>& dx, const std::optional<View>& dw,
                 const View& workspace) {
  const int32_t* const targets = targets_view.As<int32_t>();
  const float* const weights = weights_view.As<float>();
  const HeadLossKernels& kernels = ForThisCpu(kHeadLossAvx2, kHeadLossAvx512);
  const bool with_gradient = dx.has_value();
  // g is scaled before its products, which round their results. In fp32 x and dx are scaled
  // instead: they are smaller.
  const bool scale_g = x.dtype != DType::kFloat32;
  // For a chunk's rows: the loss, the largest logit, and the factor that a row of g still lacks.
  double* const nll = workspace.As<double>();
  float *const maxima = reinterpret_cast<float*>(nll + s.chunk), *const factors = maxima + s.chunk;
  float* const logits = factors + s.chunk;
  const View dw_sums(workspace.data + s.dw_sums, DType::kFloat32, {s.vocab, s.cols});
  const double gradient_scale = loss_scale ? *loss_scale->As<float>() : 1;
  double total = 0;
  for (int64_t first = 0; first < s.rows; first += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.rows - first);
    const int64_t chunk = first * s.cols;  // The chunk's begin in x and dx.
    std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
    Gemm(pool, rows, s.vocab, s.cols, Factor(x, chunk, s.cols), Transposed(w, 0, s.cols),
         {logits, s.vocab}, {.finish = [&](const GemmTile& tile) {
           for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
             RaiseTo(maxima[i], kernels.max(logits + i * s.vocab + tile.col, tile.cols));
           }
         }});
    pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = logits + i * s.vocab;
        const float weight = weights[first + i];
        if (weight == 0) {
          nll[i] = factors[i] = 0;
          if (with_gradient) std::fill_n(row, s.vocab, 0.0f);
          continue;
        }
        const float max = maxima[i];
        float& target = row[targets[first + i]];
        const float logit = target;
        const double sum = with_gradient ? kernels.replace_by_exp(row, s.vocab, max)
                                         : kernels.sum_of_exp(row, s.vocab, max);
        nll[i] = std::log(sum) + (static_cast<double>(max) - logit);
        // g = factor (e - [target] sum): the factor goes to what g is multiplied with.
        target -= static_cast<float>(sum);
        factors[i] = static_cast<float>(scale * weight / sum * gradient_scale);
        if (with_gradient && scale_g) ScaleTo(w.dtype, factors[i], s.vocab, row);
      }
    });
    for (int64_t i = 0; i < rows; ++i) total += weights[first + i] * nll[i];
    if (!with_gradient) continue;
    const int64_t row_elements = s.vocab * int64_t{sizeof(float)} / SizeOf(w.dtype);
    const View g(reinterpret_cast<std::byte*>(logits), w.dtype, {rows, row_elements});
    const GemmOperand g_rows = Factor(g, 0, row_elements), w_rows = Factor(w, 0, s.cols);
    const auto add_to_dw = [&](const ConstView& right) {
      const bool sums = s.dw_sums > 0;
      Gemm(pool, s.vocab, s.cols, rows, Transposed(g, 0, row_elements),
           Factor(right, chunk, s.cols), Result(sums ? dw_sums : *dw, 0, s.cols),
           {.beta = sums && first == 0 ? 0.0f : 1.0f});
    };
    if (scale_g) {
      if (dw) add_to_dw(x);
      Gemm(pool, rows, s.cols, s.vocab, g_rows, w_rows, Result(*dx, chunk, s.cols));
      continue;
    }
    float* const dx_chunk = dx->As<float>() + chunk;
    const auto scale_rows = [&](const GemmTile& tile, const float* from) {
      for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
        const float factor = factors[i];
        const int64_t at = i * s.cols + tile.col;
#pragma omp simd
        for (int64_t j = 0; j < tile.cols; ++j) dx_chunk[at + j] = factor * from[at + j];
      }
    };
    if (dw) {
      // dx's place serves for the rows of x, each times its factor, until dx itself comes there.
      pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
        scale_rows({begin, end - begin, 0, s.cols}, x.As<float>() + chunk);
      });
      add_to_dw(*dx);
    }
    Gemm(pool, rows, s.cols, s.vocab, g_rows, w_rows, Result(*dx, chunk, s.cols),
         {.finish = [&](const GemmTile& tile) { scale_rows(tile, dx_chunk); }});
  }
  if (dw && s.dw_sums > 0) {
    const int64_t n = s.vocab * s.cols;
    constexpr int64_t kGrain = 1024;
    pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
      AddFloats(dw_sums.As<float>() + begin, end - begin, *dw, begin);
    });
  }
  *loss.As<float>() += static_cast<float>(scale * total);
}

}  // namespace fsdp
