#include "trainer/ops/cpu/head_loss_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

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

}  // namespace

void HeadLossCpu(ThreadPool& pool, const HeadLossShape& s, const ConstView& x_view,
                 const ConstView& w_view, const ConstView& targets_view,
                 const ConstView& weights_view, float scale, const View& loss,
                 const std::optional<View>& dx_view, const std::optional<View>& dw_view,
                 const View& workspace) {
  const float *const x = x_view.As<float>(), *const w = w_view.As<float>();
  const int32_t* const targets = targets_view.As<int32_t>();
  const float* const weights = weights_view.As<float>();
  float *const dx = DataOrNull<float>(dx_view), *const dw = DataOrNull<float>(dw_view);
  const HeadLossKernels& kernels = ForThisCpu(kHeadLossAvx2, kHeadLossAvx512);
  const bool with_gradient = dx != nullptr;
  // Of a chunk's rows: the loss, the largest logit, and what a row of g is multiplied by yet.
  double* const nll = workspace.As<double>();
  float *const maxima = reinterpret_cast<float*>(nll + s.chunk), *const factors = maxima + s.chunk;
  float* const logits = factors + s.chunk;
  double total = 0;
  for (int64_t first = 0; first < s.rows; first += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.rows - first);
    const float* x_chunk = x + first * s.cols;
    std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
    Gemm(pool, rows, s.vocab, s.cols, {x_chunk, s.cols}, {w, s.cols, true}, {logits, s.vocab},
         {.finish = [&](const GemmTile& tile) {
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
        factors[i] = static_cast<float>(scale * weight / sum);
      }
    });
    for (int64_t i = 0; i < rows; ++i) total += weights[first + i] * nll[i];
    if (!with_gradient) continue;
    float* dx_chunk = dx + first * s.cols;
    const auto scale_rows = [&](const GemmTile& tile, const float* from) {
      for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
        const float factor = factors[i];
        const int64_t at = i * s.cols + tile.col;
#pragma omp simd
        for (int64_t j = 0; j < tile.cols; ++j) dx_chunk[at + j] = factor * from[at + j];
      }
    };
    if (dw != nullptr) {
      // dx's place serves for the rows of x, each times its factor, until dx itself comes there.
      pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
        scale_rows({begin, end - begin, 0, s.cols}, x_chunk);
      });
      Gemm(pool, s.vocab, s.cols, rows, {logits, s.vocab, true}, {dx_chunk, s.cols}, {dw, s.cols},
           {.beta = 1});
    }
    Gemm(pool, rows, s.cols, s.vocab, {logits, s.vocab}, {w, s.cols}, {dx_chunk, s.cols},
         {.finish = [&](const GemmTile& tile) { scale_rows(tile, dx_chunk); }});
  }
  *loss.As<float>() += static_cast<float>(scale * total);
}

}  // namespace fsdp
