#include "trainer/ops/head_loss_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/ops/gemm.h"
#include "trainer/ops/vector_math.h"

namespace fsdp {
namespace {

void CheckTargets(const HeadLossShape& s, const int32_t* targets, const float* weights) {
  for (int64_t i = 0; i < s.rows; ++i) {
    if (weights[i] != 0 && (targets[i] < 0 || targets[i] >= s.vocab)) {
      throw DataError("row " + std::to_string(i) + " has target " + std::to_string(targets[i]) +
                      ", want one in [0, " + std::to_string(s.vocab) + ")");
    }
  }
}

float Max(const float* row, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t v = 0; v < n; ++v) max = row[v] > max ? row[v] : max;
  return max;
}

// sum_v e^(row[v] - max); each term also replaces its logit where `keep`.
template <bool keep>
double SumOfExp(float* row, int64_t n, float max) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = begin; v < end; ++v) {
      const float e = Exp(row[v] - max);
      if constexpr (keep) row[v] = e;
      sum += e;
    }
    total += sum;
  }
  return total;
}

// Turns a row of logits into its row of g where `with_gradient`. Returns nll.
template <bool with_gradient>
double Row(float* row, int64_t vocab, int32_t target, float factor) {
  const float max = Max(row, vocab);
  const float logit = row[target];
  const double sum = SumOfExp<with_gradient>(row, vocab, max);
  if constexpr (with_gradient) {
    const float normalise = static_cast<float>(factor / sum);
#pragma omp simd
    for (int64_t v = 0; v < vocab; ++v) row[v] *= normalise;
    row[target] -= factor;
  }
  return std::log(sum) + (static_cast<double>(max) - logit);
}

}  // namespace

void HeadLossCpu(ThreadPool& pool, const HeadLossShape& s, const float* x, const float* w,
                 const int32_t* targets, const float* weights, float scale, float* loss, float* dx,
                 float* dw, double* nll, float* logits) {
  CheckTargets(s, targets, weights);
  const bool with_gradient = dx != nullptr;
  double total = 0;
  for (int64_t first = 0; first < s.rows; first += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.rows - first);
    const float* x_chunk = x + first * s.cols;
    Gemm(pool, rows, s.vocab, s.cols, 1, {x_chunk, s.cols}, {w, s.cols, true}, 0, logits, s.vocab);
    pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = logits + i * s.vocab;
        const float weight = weights[first + i];
        if (weight == 0) {
          nll[i] = 0;
          if (with_gradient) std::fill_n(row, s.vocab, 0.0f);
          continue;
        }
        const int32_t target = targets[first + i];
        nll[i] = with_gradient ? Row<true>(row, s.vocab, target, scale * weight)
                               : Row<false>(row, s.vocab, target, scale * weight);
      }
    });
    for (int64_t i = 0; i < rows; ++i) total += weights[first + i] * nll[i];
    if (with_gradient) {
      Gemm(pool, rows, s.cols, s.vocab, 1, {logits, s.vocab}, {w, s.cols}, 0, dx + first * s.cols,
           s.cols);
    }
    if (dw != nullptr) {
      Gemm(pool, s.vocab, s.cols, rows, 1, {logits, s.vocab, true}, {x_chunk, s.cols}, 1, dw,
           s.cols);
    }
  }
  loss[0] += static_cast<float>(scale * total);
}

}  // namespace fsdp
