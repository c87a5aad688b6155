#include "trainer/ops/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/matrix_backends.h"
#include "trainer/ops/reductions.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Blocks of rows: more would save FLOPs, and make products that are too small.
constexpr int64_t kBlocks = 6, kBlockRows = 64;  // A multiple of so many rows.

void DivideByNormCpu(ThreadPool& pool, float eps, const ConstView& sum, const View& x) {
  constexpr int64_t kGrain = 4096;
  const float factor = 1 / std::max(std::sqrt(*sum.As<float>()), eps);
  pool.ParallelFor(x.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    ForEachPiece(x.dtype, begin, end, [&](int64_t at, int64_t n) {
      float* values = FloatsToChange(x, at, n, buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) values[i] *= factor;
      WriteFloats(values, n, x, at);
    });
  });
}

// Rows [begin, end) of out, in tiles. Above the diagonal a tile is read column by column.
void SymmetricRows(int64_t m, int64_t block, float p_scale, const float* products, float a_scale,
                   const ConstView& a, int64_t begin, int64_t end, const View& out) {
  constexpr int64_t kTile = 64;
  float tile[kTile], old[kTile];
  const auto row_of = [&](int64_t i) {  // P's row, up to its block's end.
    const int64_t b = i / block, width = std::min(m, (b + 1) * block);
    return products + block * block * b * (b + 1) / 2 + (i - b * block) * width;
  };
  const float* columns[kTile];
  for (int64_t column = 0; column < m; column += kTile) {
    const int64_t n = std::min(kTile, m - column);
    for (int64_t j = 0; j < n; ++j) columns[j] = row_of(column + j);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t below = std::clamp<int64_t>(i + 1 - column, 0, n);
      const float* const row = row_of(i) + column;
      for (int64_t j = 0; j < below; ++j) tile[j] = p_scale * row[j];
      for (int64_t j = below; j < n; ++j) tile[j] = p_scale * columns[j][i];
      if (a.data != nullptr) {
        const float* added = ReadFloats(a, i * m + column, n, old);
        for (int64_t j = 0; j < n; ++j) tile[j] += a_scale * added[j];
      }
      float* to = FloatsToWrite(out, i * m + column, tile);
      if (to != tile) std::copy_n(tile, n, to);
      WriteFloats(to, n, out, i * m + column);
    }
  }
}

void SymmetricSumCpu(ThreadPool& pool, int64_t block, float p_scale, const ConstView& products,
                     float a_scale, const ConstView& a, const View& out) {
  constexpr int64_t kRows = 16;
  const int64_t m = out.shape[0], groups = (m + kRows - 1) / kRows;
  pool.ParallelFor(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      SymmetricRows(m, block, p_scale, products.As<float>(), a_scale, a, g * kRows,
                    std::min(m, (g + 1) * kRows), out);
    }
  });
}

// Blocks of rows of x x^T up to the diagonal's block. x: [m, n]; symmetric where m = n, and then
// this is x x, too.
void SymmetricProduct(Stream& stream, const View& x, const View& products) {
  const int64_t m = x.shape[0], n = x.shape[1], block = SymmetricBlock(m);
  int64_t at = 0;
  for (int64_t row = 0; row < m; row += block) {
    const int64_t rows = std::min(block, m - row), width = row + rows;
    const View rows_of_x = x.Slice(row * n, rows * n).Reshape({rows, n});
    const View up_to_there = x.Slice(0, width * n).Reshape({width, n});
    LinearForward(stream, rows_of_x, up_to_there, WeightLayout::kOutIn, std::nullopt,
                  products.Slice(at, rows * width).Reshape({rows, width}));
    at += rows * width;
  }
}

}  // namespace

int64_t SymmetricBlock(int64_t m) {
  const int64_t rows = (m + kBlocks - 1) / kBlocks;
  return std::max<int64_t>(1, (rows + kBlockRows - 1) / kBlockRows) * kBlockRows;
}

int64_t ProductElements(int64_t m) {
  const int64_t block = SymmetricBlock(m);
  int64_t elements = 0;
  for (int64_t row = 0; row < m; row += block) {
    const int64_t end = std::min(m, row + block);
    elements += (end - row) * end;
  }
  return elements;
}

void DivideByNorm(Stream& stream, double eps, ConstView sum, View x) {
  constexpr const char* kOp = "divide_by_norm";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckElements("x", x, x.dtype, x.NumElements());
  args.Check("sum", sum, DType::kFloat32, {1});
  args.CheckDisjoint("sum", sum, "x", x);
  const auto least = static_cast<float>(eps);
  args.Require(least > 0, "eps, want > 0");
  const double bytes = static_cast<double>(x.bytes());
  const Cost cost{
      .flops = static_cast<double>(x.NumElements()), .bytes_read = bytes, .bytes_written = bytes};
  stream.Enqueue(
      {kOp,
       {sum},
       {x},
       {cost},
       {OnCpu(DivideByNormCpu, least, sum, x), OnCuda(DivideByNormCuda, least, sum, x)}});
}

void SymmetricSum(Stream& stream, float p_scale, ConstView products, float a_scale, ConstView a,
                  View out) {
  constexpr const char* kOp = "symmetric_sum";
  const Arguments args(kOp);
  args.CheckDType("out", out.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank("out", out, out.dtype, 2);
  const int64_t m = out.shape[0];
  args.Check("out", out, out.dtype, {m, m});
  args.Check("products", products, DType::kFloat32, {ProductElements(m)});
  args.CheckDisjoint("out", out, "products", products);
  if (a.data != nullptr) {
    args.Check("a", a, out.dtype, {m, m});
    args.CheckSameOrDisjoint("out", out, "a", a);
  }
  const double elements = static_cast<double>(out.NumElements());
  const Cost cost{.flops = elements * (a.data ? 3 : 1),
                  .bytes_read = static_cast<double>(products.bytes() + a.bytes()),
                  .bytes_written = static_cast<double>(out.bytes())};
  Operation operation{kOp, {products}, {out}, {cost}};
  if (a.data != nullptr && a.data != out.data) operation.reads.push_back(a);
  const int64_t block = SymmetricBlock(m);
  operation.kernels.cpu = OnCpu(SymmetricSumCpu, block, p_scale, products, a_scale, a, out);
  operation.kernels.cuda = OnCuda(SymmetricSumCuda, block, p_scale, products, a_scale, a, out);
  stream.Enqueue(std::move(operation));
}

ScaledMatrix NewtonSchulz(Stream& stream, const NewtonSchulzOptions& options, int64_t m, int64_t n,
                          const NewtonSchulzWorkspace& workspace) {
  const Arguments args("newton_schulz");
  args.Require(1 <= m && m <= n, "a matrix of m x n, want 1 <= m <= n");
  args.Require(options.steps >= 1, "steps, want >= 1");
  const auto [a, b, c] = options.coefficients;
  args.Require(a > 0, "coefficients, want the first one > 0");
  args.CheckDType("y", workspace.y.dtype, {DType::kFloat32, DType::kBFloat16});
  const auto front = [&](const char* name, const View& of, DType dtype, int64_t elements) {
    args.CheckElements(name, of, dtype, of.NumElements());
    if (of.NumElements() < elements) args.Fail(std::string(name) + " is too small");
    return of.Slice(0, elements);
  };
  const DType dtype = workspace.y.dtype;
  View y = front("y", workspace.y, dtype, m * n).Reshape({m, n});
  View spare = front("spare", workspace.spare, dtype, m * n).Reshape({m, n});
  const View square = front("square", workspace.square, dtype, m * m).Reshape({m, m});
  const View products = front("products", workspace.products, DType::kFloat32, ProductElements(m));
  Fill(stream, 0, workspace.sum);
  SumOfSquares(stream, y, workspace.sum, workspace.reduction);
  DivideByNorm(stream, options.eps, workspace.sum, y);
  double scale = 1;  // X = scale * y.
  for (int step = 0; step < options.steps; ++step) {
    SymmetricProduct(stream, y, products);
    SymmetricSum(stream, static_cast<float>(scale * scale), products, 0, View(), square);
    SymmetricProduct(stream, square, products);
    SymmetricSum(stream, static_cast<float>(c / a), products, static_cast<float>(b / a), square,
                 square);
    LinearResidualForward(stream, square, y, WeightLayout::kInOut, std::nullopt, y, spare);
    std::swap(y, spare);
    scale *= a;
  }
  return {y, static_cast<float>(scale)};
}

}  // namespace fsdp
