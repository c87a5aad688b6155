#include "trainer/ops/factored.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/factored_backends.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int kLanes = 16;

bool IsSkipped(const ConstView& coefficient) { return !std::isfinite(*coefficient.As<float>()); }

// Calls body(r, c, at, n) for each row's elements in a tile: columns [c, c + n) of row r, elements
// [at, at + n) of the shard. No run is empty.
template <typename Body>
void ForEachRow(const TiledPiece& t, int64_t tile, const Body& body) {
  const FactoredPiece& p = t.piece;
  const int64_t block = t.first_block + tile / t.stripes, width = p.tensor.columns;
  const int64_t matrix = block / t.blocks_in_matrix, matrix_end = (matrix + 1) * t.rows_in_matrix;
  const int64_t begin = matrix * t.rows_in_matrix + block % t.blocks_in_matrix * kTileRows;
  const int64_t stripe = tile % t.stripes * kTileColumns;
  for (int64_t r = begin; r < std::min(begin + kTileRows, matrix_end); ++r) {
    const int64_t c = std::max(stripe, p.first - r * width);
    const int64_t end = std::min({stripe + kTileColumns, width, p.first + p.count - r * width});
    if (c < end) body(r, c, p.at + r * width + c - p.first, end - c);
  }
}

// The sum of x[i]^2, in lanes: no compiler chooses the order.
float SquaresOf(const float* x, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::fma(x[i + lane], x[i + lane], lanes[lane]);
    }
  }
  for (; i < n; ++i) lanes[0] = std::fma(x[i], x[i], lanes[0]);
  return std::accumulate(lanes, lanes + kLanes, 0.0f);
}

// Calls body(tile) for all tiles, and then sets `out` to the sum of what they left in the
// workspace.
template <typename Body>
void SumTiles(ThreadPool& pool, const TiledPiece& t, const View& workspace, float* out,
              const Body& body) {
  float* const of_tiles = workspace.As<float>() + t.of_tiles;
  pool.ParallelFor(t.tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) of_tiles[tile] = body(tile);
  });
  *out = std::accumulate(of_tiles, of_tiles + t.tiles, 0.0f);
}

// One tile of FactorSums(). Returns the sum of p^2.
float SumTile(const TiledPiece& t, int64_t tile, float factor, const ConstView& g,
              const ConstView& p, float* workspace) {
  const bool is_matrix = t.piece.tensor.matrix_rows > 0;
  const int64_t block = tile / t.stripes, stripe = tile % t.stripes;
  float columns[kTileColumns] = {}, scaled[kTileColumns], buffer[kTileColumns];
  float* const of_rows = workspace + t.of_rows;
  float weights = 0;
  // Rows of the block that the piece has nothing of, in this stripe.
  const int64_t first_row = std::max(t.first_row, t.RowOfBlock(block));
  const int64_t end_row = std::min(t.first_row + t.rows, t.EndOfBlock(block));
  for (int64_t r = first_row; is_matrix && r < end_row; ++r) {
    of_rows[(r - t.first_row) * t.stripes + stripe] = 0;
  }
  ForEachRow(t, tile, [&](int64_t r, int64_t c, int64_t at, int64_t n) {
    weights += SquaresOf(ReadFloats(p, at, n, buffer), n);
    if (!is_matrix) return;
    const float* const from = ReadFloats(g, at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) scaled[i] = factor * from[i];
    float* const column = columns + (c - stripe * kTileColumns);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) column[i] = std::fma(scaled[i], scaled[i], column[i]);
    of_rows[(r - t.first_row) * t.stripes + stripe] = SquaresOf(scaled, n);
  });
  if (is_matrix) {
    const int64_t width = t.piece.tensor.columns, begin = stripe * kTileColumns;
    std::copy_n(columns, std::min<int64_t>(kTileColumns, width - begin),
                workspace + t.of_columns + block * width + begin);
  }
  return weights;
}

// Sums of rows and columns, from those of tiles.
void GatherSums(ThreadPool& pool, const TiledPiece& t, const float* workspace, float* sums) {
  const FactoredTensor& tensor = t.piece.tensor;
  constexpr int64_t kGrain = 256;
  pool.ParallelFor(tensor.matrix_rows == 0 ? 0 : t.rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const of = workspace + t.of_rows + r * t.stripes;
      sums[tensor.at + t.first_row + r] = std::accumulate(of, of + t.stripes, 0.0f);
    }
  });
  const int64_t width = tensor.columns;
  pool.ParallelFor(t.matrices * width, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t matrix = t.first_matrix + i / width;
      const int64_t first = std::max<int64_t>(0, matrix * t.blocks_in_matrix - t.first_block);
      const int64_t last = std::min(t.blocks, (matrix + 1) * t.blocks_in_matrix - t.first_block);
      float sum = 0;
      for (int64_t b = first; b < last; ++b) {
        sum += workspace[t.of_columns + b * width + i % width];
      }
      sums[tensor.at + tensor.rows + t.first_matrix * width + i] = sum;
    }
  });
}

void FactorSumsCpu(ThreadPool& pool, const std::vector<TiledPiece>& pieces,
                   const ConstView& coefficient, const ConstView& g, const ConstView& p,
                   const FactoredSums& sums, const View& workspace) {
  if (IsSkipped(coefficient)) return;
  const float factor = *coefficient.As<float>();
  for (const TiledPiece& t : pieces) {
    SumTiles(pool, t, workspace, sums.weights.As<float>() + t.piece.tensor.index,
             [&](int64_t tile) { return SumTile(t, tile, factor, g, p, workspace.As<float>()); });
    GatherSums(pool, t, workspace.As<float>(), sums.sums.As<float>());
  }
}

void FoldTensor(const FactoredTensor& t, float eps1, float fresh, float* sums, float* moments) {
  float *const rows = moments + t.at, *const columns = rows + t.rows;
  float *const row_sums = sums + t.at, *const column_sums = row_sums + t.rows;
  const int64_t height = t.matrix_rows;
  for (int64_t m = 0; m < t.matrices(); ++m) {
    double sum = 0;
    for (int64_t r = m * height; r < (m + 1) * height; ++r) {
      rows[r] += fresh * (row_sums[r] / static_cast<float>(t.columns) - rows[r]);
      sum += rows[r];
    }
    const float mean = std::max(static_cast<float>(sum / static_cast<double>(height)), eps1);
    for (int64_t r = m * height; r < (m + 1) * height; ++r) row_sums[r] = rows[r] / mean;
  }
  for (int64_t c = 0; c < t.matrices() * t.columns; ++c) {
    columns[c] += fresh * (column_sums[c] / static_cast<float>(height) - columns[c]);
  }
}

void FoldFactorsCpu(ThreadPool& pool, const std::vector<FactoredTensor>& tensors,
                    double beta2_decay, float eps1, const ConstView& factors,
                    const ConstView& coefficient, const FactoredSums& sums) {
  if (IsSkipped(coefficient)) return;
  const auto t = static_cast<double>(factors.As<UpdateFactors>()->update);
  const auto fresh = static_cast<float>(std::pow(t, beta2_decay));
  *sums.fresh.As<float>() = fresh;
  pool.ParallelFor(std::ssize(tensors), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      FoldTensor(tensors[i], eps1, fresh, sums.sums.As<float>(), sums.moments.As<float>());
    }
  });
}

// The elements' u before the tensor's own factor: g / sqrt(max(e, eps1^2)).
struct UnscaledUpdate {
  float factor, least, fresh;
  const FactoredSums& sums;

  // For columns [c, c + n) of row r of a matrix.
  void OfMatrix(const FactoredTensor& t, int64_t r, int64_t c, int64_t n, const float* g,
                float* u) const {
    const float row = sums.sums.As<float>()[t.at + r];
    const float* const columns =
        sums.moments.As<float>() + t.at + t.rows + r / t.matrix_rows * t.columns + c;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      u[i] = factor * g[i] / std::sqrt(std::max(row * columns[i], least));
    }
  }
  // new_v may be v.
  void OfVector(int64_t n, const float* g, const float* v, float* new_v, float* u) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float x = factor * g[i];
      const float e = v[i] + fresh * (x * x - v[i]);
      new_v[i] = e;
      u[i] = x / std::sqrt(std::max(e, least));
    }
  }
};

UnscaledUpdate UnscaledOf(const FactoredConstants& constants, const ConstView& coefficient,
                          const FactoredSums& sums) {
  return {*coefficient.As<float>(), constants.least, *sums.fresh.As<float>(), sums};
}

void UpdateSquaresCpu(ThreadPool& pool, const std::vector<TiledPiece>& pieces,
                      const FactoredConstants& constants, const ConstView& coefficient,
                      const ConstView& g, const ConstView& v, const FactoredSums& sums,
                      const View& workspace) {
  if (IsSkipped(coefficient)) return;
  const UnscaledUpdate unscaled = UnscaledOf(constants, coefficient, sums);
  for (const TiledPiece& t : pieces) {
    const FactoredTensor& tensor = t.piece.tensor;
    const auto squares = [&](int64_t tile) {
      float buffer[kTileColumns], u[kTileColumns], new_v[kTileColumns];
      float sum = 0;
      ForEachRow(t, tile, [&](int64_t r, int64_t c, int64_t at, int64_t n) {
        const float* const from = ReadFloats(g, at, n, buffer);
        if (tensor.matrix_rows > 0) {
          unscaled.OfMatrix(tensor, r, c, n, from, u);
        } else {
          unscaled.OfVector(n, from, v.As<float>() + at, new_v, u);
        }
        sum += SquaresOf(u, n);
      });
      return sum;
    };
    SumTiles(pool, t, workspace, sums.updates.As<float>() + tensor.index, squares);
  }
}

// The factor of a tensor's u.
float ScaleOf(const FactoredTensor& t, const FactoredConstants& constants,
              const UpdateFactors& factors, const FactoredSums& sums) {
  const auto n = static_cast<float>(t.rows * t.columns);
  const float weight = std::sqrt(sums.weights.As<float>()[t.index] / n);
  const float update = std::sqrt(sums.updates.As<float>()[t.index] / n);
  const double most = 1 / std::sqrt(static_cast<double>(factors.update));
  const double lr = t.lr_scale * factors.lr;
  const auto share = static_cast<float>(lr > most ? most / lr : 1);
  return std::max(constants.eps2, weight) * share / std::max(1.0f, update / constants.d);
}

void FactoredUpdateCpu(ThreadPool& pool, const std::vector<TiledPiece>& pieces,
                       const FactoredConstants& constants, const ConstView& factors,
                       const ConstView& coefficient, const ConstView& g, const View& v,
                       const FactoredSums& sums, const View& u) {
  if (IsSkipped(coefficient)) return;
  const UnscaledUpdate unscaled = UnscaledOf(constants, coefficient, sums);
  for (const TiledPiece& t : pieces) {
    const FactoredTensor& tensor = t.piece.tensor;
    const float scale = ScaleOf(tensor, constants, *factors.As<UpdateFactors>(), sums);
    pool.ParallelFor(t.tiles, 1, [&](int64_t begin, int64_t end) {
      float buffer[kTileColumns];
      for (int64_t tile = begin; tile < end; ++tile) {
        ForEachRow(t, tile, [&](int64_t r, int64_t c, int64_t at, int64_t n) {
          const float* const from = ReadFloats(g, at, n, buffer);
          float* const to = u.As<float>() + at;
          if (tensor.matrix_rows > 0) {
            unscaled.OfMatrix(tensor, r, c, n, from, to);
          } else {
            float* const moment = v.As<float>() + at;
            unscaled.OfVector(n, from, moment, moment, to);
          }
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) to[i] *= scale;
        });
      }
    });
  }
}

void CheckPieces(const Arguments& args, const std::vector<FactoredPiece>& pieces,
                 const ConstView& g, const FactoredSums& sums) {
  args.CheckGradient("g", g, {g.NumElements()});
  const auto check = [&](const char* name, const ConstView& view) {
    args.CheckElements(name, view, DType::kFloat32, view.NumElements());
  };
  check("sums", sums.sums), check("weights", sums.weights), check("updates", sums.updates);
  args.CheckElements("moments", sums.moments, DType::kFloat32, sums.sums.NumElements());
  args.Check("fresh", sums.fresh, DType::kFloat32, {1});
  for (const FactoredPiece& p : pieces) {
    const FactoredTensor& t = p.tensor;
    args.Require(t.rows > 0 && t.columns > 0 && t.matrix_rows >= 0 && t.lr_scale >= 0,
                 "a tensor's rows, columns, matrix_rows or lr_scale are out of range");
    args.Require(t.matrix_rows == 0 ? t.rows == 1 : t.rows % t.matrix_rows == 0,
                 "rows of a tensor, want those of whole matrices, or 1 of a vector");
    args.Require(p.first >= 0 && p.count > 0 && p.first + p.count <= t.rows * t.columns,
                 "a piece leaves its tensor");
    args.Require(p.at >= 0 && p.at + p.count <= g.NumElements(), "a piece leaves the shard");
    args.Require(t.at >= 0 && t.at + t.values() <= sums.sums.NumElements(), "a tensor leaves sums");
    args.Require(t.index >= 0 && t.index < sums.weights.NumElements() &&
                     t.index < sums.updates.NumElements(),
                 "a tensor leaves weights or updates");
  }
}

double ElementsOf(const std::vector<FactoredPiece>& pieces) {
  double n = 0;
  for (const FactoredPiece& piece : pieces) n += static_cast<double>(piece.count);
  return n;
}

void CheckV(const Arguments& args, const std::vector<FactoredPiece>& pieces, const ConstView& g,
            const ConstView& v) {
  for (const FactoredPiece& piece : pieces) {
    if (piece.tensor.matrix_rows == 0) return args.Check("v", v, DType::kFloat32, g.shape);
  }
}

FactoredConstants CheckedConstants(const Arguments& args, const FactoredOptions& o) {
  args.Require(o.beta2_decay <= 0, "beta2_decay, want at most 0");
  args.Require(o.eps1 >= kMinFactoredEps, "eps1, want at least kMinFactoredEps");
  args.Require(o.eps2 >= 0, "eps2, want >= 0");
  args.Require(o.d >= 1, "d, want at least 1");
  return {static_cast<float>(o.eps1 * o.eps1), static_cast<float>(o.eps2), static_cast<float>(o.d)};
}

// Launches of `each` for the pieces.
OnGpu LaunchesFor(size_t pieces, int64_t each) {
  const auto n = static_cast<int64_t>(pieces);
  return {.launches = each * ((n + kPiecesOfLaunch - 1) / kPiecesOfLaunch)};
}

// Reads of an op: those of the views that are there.
std::vector<Range> There(std::initializer_list<ConstView> views) {
  std::vector<Range> ranges;
  for (const ConstView& view : views) {
    if (view.data != nullptr) ranges.emplace_back(view);
  }
  return ranges;
}

}  // namespace

int64_t TiledPiece::RowOfBlock(int64_t block) const {
  const int64_t all = first_block + block;
  return all / blocks_in_matrix * rows_in_matrix + all % blocks_in_matrix * kTileRows;
}

int64_t TiledPiece::EndOfBlock(int64_t block) const {
  const int64_t matrix = (first_block + block) / blocks_in_matrix;
  return std::min(RowOfBlock(block) + kTileRows, (matrix + 1) * rows_in_matrix);
}

std::vector<TiledPiece> TilesOf(const std::vector<FactoredPiece>& pieces) {
  std::vector<TiledPiece> tiled;
  int64_t end = 0;
  for (const FactoredPiece& piece : pieces) {
    const FactoredTensor& t = piece.tensor;
    TiledPiece& of = tiled.emplace_back();
    of.piece = piece;
    of.rows_in_matrix = std::max<int64_t>(t.matrix_rows, 1);
    of.blocks_in_matrix = (of.rows_in_matrix + kTileRows - 1) / kTileRows;
    of.stripes = (t.columns + kTileColumns - 1) / kTileColumns;
    const int64_t last_row = (piece.first + piece.count - 1) / t.columns;
    of.first_row = piece.first / t.columns;
    of.rows = last_row - of.first_row + 1;
    const auto block_of = [&](int64_t row) {
      return row / of.rows_in_matrix * of.blocks_in_matrix + row % of.rows_in_matrix / kTileRows;
    };
    of.first_block = block_of(of.first_row);
    of.blocks = block_of(last_row) - of.first_block + 1;
    of.first_matrix = of.first_row / of.rows_in_matrix;
    of.matrices = t.matrix_rows == 0 ? 0 : last_row / of.rows_in_matrix - of.first_matrix + 1;
    of.of_rows = end;
    of.of_columns = of.of_rows + (t.matrix_rows == 0 ? 0 : of.rows * of.stripes);
    of.of_tiles = of.of_columns + (t.matrix_rows == 0 ? 0 : of.blocks * t.columns);
    of.tiles = of.blocks * of.stripes;
    of.values = t.matrix_rows == 0 ? 0 : of.rows + of.matrices * t.columns;
    end = of.of_tiles + of.tiles;
  }
  return tiled;
}

int64_t FactoredWorkspaceElements(const std::vector<FactoredPiece>& pieces) {
  if (pieces.empty()) return 0;
  const TiledPiece last = TilesOf(pieces).back();
  return last.of_tiles + last.tiles;
}

void FactorSums(Stream& stream, const std::vector<FactoredPiece>& pieces, ConstView coefficient,
                ConstView g, ConstView p, const FactoredSums& sums, View workspace) {
  constexpr const char* kOp = "factor_sums";
  const Arguments args(kOp);
  CheckPieces(args, pieces, g, sums);
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckDType("p", p.dtype, {DType::kFloat32, DType::kBFloat16});
  args.Check("p", p, p.dtype, g.shape);
  args.CheckWorkspace(workspace, 4 * FactoredWorkspaceElements(pieces));
  if (pieces.empty()) return;
  const std::vector<TiledPiece> tiles = TilesOf(pieces);
  double values = 0;
  for (const TiledPiece& t : tiles) values += static_cast<double>(t.values);
  const double n = ElementsOf(pieces);
  const Cost cost{.flops = 6 * n,
                  .bytes_read = n * static_cast<double>(SizeOf(g.dtype) + SizeOf(p.dtype)),
                  .bytes_written = 4 * values};
  OnGpu gpu = LaunchesFor(pieces.size(), 2);
  gpu.extra_bytes = 8.0 * static_cast<double>(FactoredWorkspaceElements(pieces));
  stream.Enqueue({kOp,
                  {coefficient, g, p},
                  There({sums.sums, sums.weights, workspace}),
                  {{cost, gpu}},
                  {OnCpu(FactorSumsCpu, tiles, coefficient, g, p, sums, workspace),
                   OnCuda(FactorSumsCuda, tiles, coefficient, g, p, sums, workspace)}});
}

void FoldFactors(Stream& stream, const std::vector<FactoredTensor>& tensors,
                 const FactoredOptions& options, ConstView factors, ConstView coefficient,
                 const FactoredSums& sums) {
  constexpr const char* kOp = "fold_factors";
  const Arguments args(kOp);
  CheckedConstants(args, options);
  args.Check("factors", factors, DType::kUInt8, BlockShape<UpdateFactors>());
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckElements("sums", sums.sums, DType::kFloat32, sums.sums.NumElements());
  args.CheckElements("moments", sums.moments, DType::kFloat32, sums.sums.NumElements());
  args.Check("fresh", sums.fresh, DType::kFloat32, {1});
  std::vector<FactoredTensor> matrices;
  double values = 0;
  for (const FactoredTensor& t : tensors) {
    args.Require(t.at >= 0 && t.at + t.values() <= sums.sums.NumElements(), "a tensor leaves sums");
    if (t.matrix_rows == 0) continue;
    matrices.push_back(t);
    values += static_cast<double>(t.values());
  }
  const auto n = static_cast<int64_t>(matrices.size());
  const Cost cost{
      .flops = 5 * values, .bytes_read = 8 * values + 8, .bytes_written = 8 * values + 4};
  const OnGpu gpu{.launches = 1 + (n + kTensorsOfLaunch - 1) / kTensorsOfLaunch};
  const auto eps1 = static_cast<float>(options.eps1);
  stream.Enqueue(
      {kOp,
       {factors, coefficient},
       There({sums.sums, sums.moments, sums.fresh}),
       {{cost, gpu}},
       {OnCpu(FoldFactorsCpu, matrices, options.beta2_decay, eps1, factors, coefficient, sums),
        OnCuda(FoldFactorsCuda, matrices, options.beta2_decay, eps1, factors, coefficient, sums)}});
}

void UpdateSquares(Stream& stream, const std::vector<FactoredPiece>& pieces,
                   const FactoredOptions& options, ConstView coefficient, ConstView g, ConstView v,
                   const FactoredSums& sums, View workspace) {
  constexpr const char* kOp = "update_squares";
  const Arguments args(kOp);
  const FactoredConstants constants = CheckedConstants(args, options);
  CheckPieces(args, pieces, g, sums);
  CheckV(args, pieces, g, v);
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.CheckWorkspace(workspace, 4 * FactoredWorkspaceElements(pieces));
  if (pieces.empty()) return;
  const double n = ElementsOf(pieces);
  Cost cost{.flops = 8 * n,
            .bytes_read = n * static_cast<double>(SizeOf(g.dtype)),
            .bytes_written = 4.0 * static_cast<double>(pieces.size())};
  for (const FactoredPiece& p : pieces) {
    if (p.tensor.matrix_rows == 0) cost.bytes_read += 4.0 * static_cast<double>(p.count);
  }
  const std::vector<TiledPiece> tiles = TilesOf(pieces);
  stream.Enqueue(
      {kOp,
       There({coefficient, g, v, sums.sums, sums.moments, sums.fresh}),
       {sums.updates, workspace},
       {{cost, LaunchesFor(pieces.size(), 2)}},
       {OnCpu(UpdateSquaresCpu, tiles, constants, coefficient, g, v, sums, workspace),
        OnCuda(UpdateSquaresCuda, tiles, constants, coefficient, g, v, sums, workspace)}});
}

void FactoredUpdate(Stream& stream, const std::vector<FactoredPiece>& pieces,
                    const FactoredOptions& options, ConstView factors, ConstView coefficient,
                    ConstView g, View v, const FactoredSums& sums, View u) {
  constexpr const char* kOp = "factored_update";
  const Arguments args(kOp);
  const FactoredConstants constants = CheckedConstants(args, options);
  CheckPieces(args, pieces, g, sums);
  CheckV(args, pieces, g, v);
  args.Check("factors", factors, DType::kUInt8, BlockShape<UpdateFactors>());
  args.Check("coefficient", coefficient, DType::kFloat32, {1});
  args.Check("u", u, DType::kFloat32, g.shape);
  args.CheckDisjoint("u", u, "g", g);
  if (pieces.empty()) return;
  const double n = ElementsOf(pieces);
  Cost cost{.flops = 8 * n,
            .bytes_read = n * static_cast<double>(SizeOf(g.dtype)),
            .bytes_written = 4 * n};
  for (const FactoredPiece& p : pieces) {
    if (p.tensor.matrix_rows > 0) continue;
    cost.bytes_read += 4.0 * static_cast<double>(p.count);
    cost.bytes_written += 4.0 * static_cast<double>(p.count);
  }
  const std::vector<TiledPiece> tiles = TilesOf(pieces);
  stream.Enqueue(
      {kOp,
       There({factors, coefficient, g, sums.sums, sums.moments, sums.fresh, sums.weights,
              sums.updates}),
       There({v, u}),
       {{cost, LaunchesFor(pieces.size(), 1)}},
       {OnCpu(FactoredUpdateCpu, tiles, constants, factors, coefficient, g, v, sums, u),
        OnCuda(FactoredUpdateCuda, tiles, constants, factors, coefficient, g, v, sums, u)}});
}

}  // namespace fsdp
