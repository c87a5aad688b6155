#include "trainer/ops/row_moments.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/matrix_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kLanes = 16;       // Sums of a row, added at its end.
constexpr int64_t kTile = 64;        // Columns that are summed together.
constexpr int64_t kGrain = 1 << 13;  // Elements of a thread's share.

void SumRow(const View& y, int64_t row, float* sum) {
  const int64_t n = y.shape[1];
  float lanes[kLanes] = {};
  FloatPiece buffer;
  ForEachPiece(y.dtype, row * n, (row + 1) * n, [&](int64_t at, int64_t count) {
    const float* const x = ReadFloats(y, at, count, buffer);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * x[i + l];
    }
    for (int64_t l = 0; i + l < count; ++l) lanes[l] += x[i + l] * x[i + l];
  });
  *sum = 0;
  for (const float lane : lanes) *sum += lane;
}

void SumColumns(const View& y, int64_t tile, float* sums) {
  const int64_t m = y.shape[0], n = y.shape[1], first = tile * kTile;
  const int64_t count = std::min(kTile, n - first);
  float lanes[kTile] = {}, buffer[kTile];
  for (int64_t i = 0; i < m; ++i) {
    const float* const x = ReadFloats(y, i * n + first, count, buffer);
    for (int64_t j = 0; j < count; ++j) lanes[j] += x[j] * x[j];
  }
  std::copy_n(lanes, count, sums + first);
}

void LineSquaresCpu(ThreadPool& pool, bool columns, const View& y, const View& sums) {
  const int64_t m = y.shape[0], n = y.shape[1];
  if (columns) {
    pool.ParallelFor((n + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) SumColumns(y, tile, sums.As<float>());
    });
    return;
  }
  pool.ParallelFor(m, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) SumRow(y, row, sums.As<float>() + row);
  });
}

void LineFactorsCpu(ThreadPool&, const LineFactors& of, const ConstView& gate, const View& v,
                    const View& factors) {
  const bool lands = std::isfinite(*gate.As<float>());
  const int64_t lines = v.NumElements();
  auto *moments = v.As<float>(), *values = factors.As<float>();
  double before = 0, after = 0;
  for (int64_t i = 0; i < lines; ++i) {
    const float square = of.scale * of.scale * values[i];
    if (lands) moments[i] = of.old * moments[i] + of.fresh * square;
    const float factor = 1 / (std::sqrt(moments[i]) + of.eps);
    before += square;
    after += static_cast<double>(factor) * factor * square;
    values[i] = factor;
  }
  const auto kept = static_cast<float>(of.scale * std::sqrt(before) / (std::sqrt(after) + of.eps));
  for (int64_t i = 0; i < lines; ++i) values[i] *= kept;
}

void ScaleLinesCpu(ThreadPool& pool, bool columns, const ConstView& factors, const View& y) {
  const int64_t m = y.shape[0], n = y.shape[1];
  const float* const factor = factors.As<float>();
  pool.ParallelFor(m, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    for (int64_t row = begin; row < end; ++row) {
      ForEachPiece(y.dtype, row * n, (row + 1) * n, [&](int64_t at, int64_t count) {
        float* const x = FloatsToChange(y, at, count, buffer);
        const float* const of_column = factor + (at - row * n);
        if (columns) {
          for (int64_t i = 0; i < count; ++i) x[i] *= of_column[i];
        } else {
          for (int64_t i = 0; i < count; ++i) x[i] *= factor[row];
        }
        WriteFloats(x, count, y, at);
      });
    }
  });
}

}  // namespace

void NormalizeRows(Stream& stream, const RowMomentsOptions& options, float scale, ConstView gate,
                   View y, View v, View workspace) {
  constexpr const char* kOp = "normalize_rows";
  const Arguments args(kOp);
  args.Require(options.beta2 >= 0 && options.beta2 < 1, "beta2, want in [0, 1)");
  args.Require(static_cast<float>(options.eps) > 0, "eps, want > 0");
  args.CheckDType("y", y.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank("y", y, y.dtype, 2);
  args.Require(y.NumElements() > 0, "y is empty");
  const int64_t lines = y.shape[options.columns ? 1 : 0];
  const int64_t width = y.shape[options.columns ? 0 : 1];
  args.Check("gate", gate, DType::kFloat32, {1});
  args.Check("v", v, DType::kFloat32, {lines});
  args.Check("workspace", workspace, DType::kFloat32, {lines});
  args.CheckDisjoint("v", v, "y", y);
  args.CheckDisjoint("workspace", workspace, "y", y);
  args.CheckDisjoint("workspace", workspace, "v", v);
  const LineFactors means{
      .old = static_cast<float>(options.beta2),
      .fresh = static_cast<float>((1 - options.beta2) / static_cast<double>(width)),
      .scale = scale,
      .eps = static_cast<float>(options.eps)};
  const double elements = static_cast<double>(y.NumElements());
  const double bytes = static_cast<double>(y.bytes()), line_bytes = static_cast<double>(v.bytes());
  const Cost squares{.flops = 2 * elements, .bytes_read = bytes, .bytes_written = line_bytes};
  const Cost factors{.flops = 10 * static_cast<double>(lines),
                     .bytes_read = 2 * line_bytes,
                     .bytes_written = 2 * line_bytes};
  const Cost products{.flops = elements, .bytes_read = bytes + line_bytes, .bytes_written = bytes};
  stream.Enqueue({kOp,
                  {y},
                  {workspace},
                  {squares},
                  {OnCpu(LineSquaresCpu, options.columns, y, workspace),
                   OnCuda(LineSquaresCuda, options.columns, y, workspace)}});
  stream.Enqueue({kOp,
                  {gate},
                  {v, workspace},
                  {factors},
                  {OnCpu(LineFactorsCpu, means, gate, v, workspace),
                   OnCuda(LineFactorsCuda, means, gate, v, workspace)}});
  stream.Enqueue({kOp,
                  {workspace},
                  {y},
                  {products},
                  {OnCpu(ScaleLinesCpu, options.columns, workspace, y),
                   OnCuda(ScaleLinesCuda, options.columns, workspace, y)}});
}

}  // namespace fsdp
