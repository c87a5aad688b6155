#include "trainer/ops/cpu/linear_cpu.h"

#include <algorithm>

#include "trainer/ops/cpu/activation_elements.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm.h"

namespace fsdp {
namespace {

GemmOperand Weight(const LinearShape& s, const ConstView& w) {
  return s.layout == WeightLayout::kInOut ? Factor(w, 0, s.out) : Transposed(w, 0, s.in);
}

// db[j] += sum_i dy[i, j] for columns [begin, end). Rows are summed in blocks, because one running
// float32 sum would lose a digit over thousands of rows. The order depends on the number of rows
// alone.
void AddColumnSums(const ConstView& dy, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                   const View& db) {
  constexpr int64_t kCols = 256, kRows = 32;
  float total[kCols], block[kCols], buffer[kCols];
  for (int64_t c = begin; c < end; c += kCols) {
    const int64_t n = std::min(kCols, end - c);
    std::fill_n(total, n, 0.0f);
    for (int64_t r = 0; r < rows; r += kRows) {
      std::fill_n(block, n, 0.0f);
      for (int64_t i = r; i < std::min(rows, r + kRows); ++i) {
        const float* row = ReadFloats(dy, i * cols + c, n, buffer);
        for (int64_t j = 0; j < n; ++j) block[j] += row[j];
      }
      for (int64_t j = 0; j < n; ++j) total[j] += block[j];
    }
    AddFloats(total, n, db, c);
  }
}

// Calls body(begin, end) for the tile's rows in a tensor of `cols` columns.
template <typename Body>
void ForEachRow(const GemmTile& tile, int64_t cols, const Body& body) {
  for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
    const int64_t at = i * cols + tile.col;
    body(at, at + tile.cols);
  }
}

}  // namespace

void LinearForwardCpu(ThreadPool& pool, const LinearShape& s, const ConstView& x,
                      const ConstView& w, const std::optional<ConstView>& b,
                      const std::optional<ConstView>& residual, const std::optional<View>& u,
                      const View& y) {
  RowBuffers bias(b ? b->dtype : DType::kFloat32, 1, s.out);
  GemmOptions options{.bias = b ? ReadFloats(*b, 0, s.out, bias[0]) : nullptr,
                      .added = residual ? residual->data : nullptr};
  if (u) {
    options.finish = [&](const GemmTile& tile) {
      ForEachRow(tile, s.out, [&](int64_t begin, int64_t end) {
        ActivationForwardElements(Activation::kGelu, *u, begin, end, y);
      });
    };
  }
  Gemm(pool, s.rows, s.out, s.in, Factor(x, 0, s.in), Weight(s, w), Result(u ? *u : y, 0, s.out),
       options);
}

void LinearBackwardCpu(ThreadPool& pool, const LinearShape& s, const std::optional<ConstView>& u,
                       const ConstView& x, const ConstView& w, const ConstView& dy,
                       const std::optional<View>& dx, const std::optional<View>& dw,
                       const std::optional<View>& db) {
  if (dx) {
    GemmOperand weight = Weight(s, w);
    weight.transposed = !weight.transposed;
    GemmOptions options;
    if (u) {
      options.finish = [&](const GemmTile& tile) {
        ForEachRow(tile, s.in, [&](int64_t begin, int64_t end) {
          ActivationBackwardElements(Activation::kGelu, *u, *dx, begin, end, *dx);
        });
      };
    }
    Gemm(pool, s.rows, s.in, s.out, Factor(dy, 0, s.out), weight, Result(*dx, 0, s.in), options);
  }
  if (dw && s.layout == WeightLayout::kInOut) {
    Gemm(pool, s.in, s.out, s.rows, Transposed(x, 0, s.in), Factor(dy, 0, s.out),
         Result(*dw, 0, s.out), {.beta = 1});
  } else if (dw) {
    Gemm(pool, s.out, s.in, s.rows, Transposed(dy, 0, s.out), Factor(x, 0, s.in),
         Result(*dw, 0, s.in), {.beta = 1});
  }
  if (db) {
    constexpr int64_t kCacheLine = 16;
    pool.ParallelFor(s.out, kCacheLine, [&](int64_t begin, int64_t end) {
      AddColumnSums(dy, s.rows, s.out, begin, end, *db);
    });
  }
}

}  // namespace fsdp
