#include "trainer/ops/cpu/linear_cpu.h"

#include <algorithm>

#include "trainer/ops/cpu/gelu_kernels.h"
#include "trainer/ops/cpu/gemm.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

const GeluKernels& Kernels() { return ForThisCpu(kGeluAvx2, kGeluAvx512); }

GemmOperand Weight(const LinearShape& s, const ConstView& w) {
  return s.layout == WeightLayout::kInOut ? GemmOperand{w.As<float>(), s.out, false}
                                          : GemmOperand{w.As<float>(), s.in, true};
}

// out[j] += sum_i rows[i, j] for columns [begin, end): in blocks of rows, because one running
// float32 sum would lose a digit over thousands of rows. The order depends on `rows` alone.
void AddColumnSums(const float* data, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                   float* out) {
  constexpr int64_t kCols = 256, kRows = 32;
  float total[kCols], block[kCols];
  for (int64_t c = begin; c < end; c += kCols) {
    const int64_t n = std::min(kCols, end - c);
    std::fill_n(total, n, 0.0f);
    for (int64_t r = 0; r < rows; r += kRows) {
      std::fill_n(block, n, 0.0f);
      for (int64_t i = r; i < std::min(rows, r + kRows); ++i) {
        const float* row = data + i * cols + c;
        for (int64_t j = 0; j < n; ++j) block[j] += row[j];
      }
      for (int64_t j = 0; j < n; ++j) total[j] += block[j];
    }
    for (int64_t j = 0; j < n; ++j) out[c + j] += total[j];
  }
}

}  // namespace

void LinearForwardCpu(ThreadPool& pool, const LinearShape& s, const ConstView& x,
                      const ConstView& w, const std::optional<ConstView>& b,
                      const std::optional<View>& u_view, const View& y_view) {
  float *const u = DataOrNull<float>(u_view), *const y = y_view.As<float>();
  GemmOptions options{.bias = DataOrNull<float>(b)};
  if (u != nullptr) {
    options.finish = [&](const GemmTile& tile) {
      for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
        const int64_t at = i * s.out + tile.col;
        Kernels().forward(u + at, tile.cols, y + at);
      }
    };
  }
  Gemm(pool, s.rows, s.out, s.in, {x.As<float>(), s.in}, Weight(s, w),
       {u != nullptr ? u : y, s.out}, options);
}

void LinearBackwardCpu(ThreadPool& pool, const LinearShape& s,
                       const std::optional<ConstView>& u_view, const ConstView& x_view,
                       const ConstView& w, const ConstView& dy_view,
                       const std::optional<View>& dx_view, const std::optional<View>& dw_view,
                       const std::optional<View>& db_view) {
  const float *const u = DataOrNull<float>(u_view), *const x = x_view.As<float>();
  const float* const dy = dy_view.As<float>();
  float *const dx = DataOrNull<float>(dx_view), *const dw = DataOrNull<float>(dw_view);
  float* const db = DataOrNull<float>(db_view);
  if (dx != nullptr) {
    GemmOperand weight = Weight(s, w);
    weight.transposed = !weight.transposed;
    GemmOptions options;
    if (u != nullptr) {
      options.finish = [&](const GemmTile& tile) {
        for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
          const int64_t at = i * s.in + tile.col;
          Kernels().backward(u + at, dx + at, tile.cols, dx + at);
        }
      };
    }
    Gemm(pool, s.rows, s.in, s.out, {dy, s.out}, weight, {dx, s.in}, options);
  }
  if (dw != nullptr && s.layout == WeightLayout::kInOut) {
    Gemm(pool, s.in, s.out, s.rows, {x, s.in, true}, {dy, s.out}, {dw, s.out}, {.beta = 1});
  } else if (dw != nullptr) {
    Gemm(pool, s.out, s.in, s.rows, {dy, s.out, true}, {x, s.in}, {dw, s.in}, {.beta = 1});
  }
  if (db != nullptr) {
    constexpr int64_t kCacheLine = 16;
    pool.ParallelFor(s.out, kCacheLine, [&](int64_t begin, int64_t end) {
      AddColumnSums(dy, s.rows, s.out, begin, end, db);
    });
  }
}

}  // namespace fsdp
