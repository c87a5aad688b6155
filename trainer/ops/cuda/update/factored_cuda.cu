#include <algorithm>

#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/factored_backends.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kColumnsOfThread = kTileColumns / kThreads;

struct PiecesOfLaunch {
  TiledPiece at[kPiecesOfLaunch];
};
struct TensorsOfLaunch {
  FactoredTensor at[kTensorsOfLaunch];
};
static_assert(sizeof(PiecesOfLaunch) <= 3800 && sizeof(TensorsOfLaunch) <= 3800);

// The addresses of FactoredSums.
struct Sums {
  float *sums, *weights, *updates, *moments, *fresh;
};
Sums AddressesOf(const FactoredSums& s) {
  return {s.sums.As<float>(), s.weights.As<float>(), s.updates.As<float>(), s.moments.As<float>(),
          s.fresh.As<float>()};
}

// The rows of a tile, and its first column.
struct Tile {
  int64_t row, end_row, column;

  __device__ Tile(const TiledPiece& t, int64_t tile) {
    const int64_t block = t.first_block + tile / t.stripes;
    const int64_t matrix = block / t.blocks_in_matrix;
    const int64_t matrix_end = (matrix + 1) * t.rows_in_matrix;
    row = matrix * t.rows_in_matrix + block % t.blocks_in_matrix * kTileRows;
    end_row = row + kTileRows < matrix_end ? row + kTileRows : matrix_end;
    column = tile % t.stripes * kTileColumns;
  }
  // Whether the piece has the element, and where.
  __device__ static bool Has(const TiledPiece& t, int64_t r, int64_t c, int64_t& at) {
    const int64_t i = r * t.piece.tensor.columns + c - t.piece.first;
    at = t.piece.at + i;
    return c < t.piece.tensor.columns && i >= 0 && i < t.piece.count;
  }
};

// A block has a tile of a piece, and a thread every kThreads-th of its columns.
template <typename G, typename P>
__global__ void __launch_bounds__(kThreads)
    SumTiles(const __grid_constant__ PiecesOfLaunch pieces, const float* coefficient, const G* g,
             const P* p, float* workspace) {
  const TiledPiece& t = pieces.at[blockIdx.y];
  const int64_t tile = blockIdx.x;
  if (tile >= t.tiles || !IsFinite(*coefficient)) return;
  __shared__ float of_rows[kTileRows][kWarps];
  __shared__ float weights[kWarps];
  const Tile rows(t, tile);
  const bool is_matrix = t.piece.tensor.matrix_rows > 0;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float of_columns[kColumnsOfThread] = {}, weight = 0;
  for (int64_t r = rows.row; r < rows.end_row; ++r) {
    float of_row = 0;
#pragma unroll
    for (int j = 0; j < kColumnsOfThread; ++j) {
      int64_t at;
      if (!Tile::Has(t, r, rows.column + j * kThreads + threadIdx.x, at)) continue;
      const float w = ToFloat(p[at]);
      weight = __fmaf_rn(w, w, weight);
      if (!is_matrix) continue;
      const float x = *coefficient * ToFloat(g[at]);
      of_row = __fmaf_rn(x, x, of_row);
      of_columns[j] = __fmaf_rn(x, x, of_columns[j]);
    }
    of_row = WarpSum(of_row);
    if (threadIdx.x % kWarp == 0) of_rows[r - rows.row][warp] = of_row;
  }
  weight = BlockSum(weight, weights);
  if (threadIdx.x == 0) workspace[t.of_tiles + tile] = weight;
  if (!is_matrix) return;
  const int64_t r = rows.row + threadIdx.x;
  if (r < rows.end_row && r >= t.first_row && r < t.first_row + t.rows) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_rows[threadIdx.x][w];
    workspace[t.of_rows + (r - t.first_row) * t.stripes + tile % t.stripes] = sum;
  }
#pragma unroll
  for (int j = 0; j < kColumnsOfThread; ++j) {
    const int64_t c = rows.column + j * kThreads + threadIdx.x, width = t.piece.tensor.columns;
    if (c < width) workspace[t.of_columns + tile / t.stripes * width + c] = of_columns[j];
  }
}

// A piece's first block adds up what is of whole tiles; the others the sums of rows and columns.
__global__ void __launch_bounds__(kThreads)
    GatherTiles(const __grid_constant__ PiecesOfLaunch pieces, const float* coefficient,
                const float* workspace, float* of_tensors, float* sums) {
  const TiledPiece& t = pieces.at[blockIdx.y];
  if (!IsFinite(*coefficient)) return;
  const FactoredTensor& tensor = t.piece.tensor;
  if (blockIdx.x == 0) {
    __shared__ float shared[kWarps];
    float sum = 0;
    for (int64_t i = threadIdx.x; i < t.tiles; i += kThreads) sum += workspace[t.of_tiles + i];
    sum = BlockSum(sum, shared);
    if (threadIdx.x == 0) of_tensors[tensor.index] = sum;
    return;
  }
  const int64_t i = (blockIdx.x - int64_t{1}) * kThreads + threadIdx.x;
  if (i >= t.values) return;
  float sum = 0;
  if (i < t.rows) {
    for (int64_t s = 0; s < t.stripes; ++s) sum += workspace[t.of_rows + i * t.stripes + s];
    sums[tensor.at + t.first_row + i] = sum;
    return;
  }
  const int64_t width = tensor.columns, column = i - t.rows;
  const int64_t before = (t.first_matrix + column / width) * t.blocks_in_matrix - t.first_block;
  const int64_t end =
      before + t.blocks_in_matrix < t.blocks ? before + t.blocks_in_matrix : t.blocks;
#pragma unroll 8
  for (int64_t b = before > 0 ? before : 0; b < end; ++b) {
    sum += workspace[t.of_columns + b * width + column % width];
  }
  sums[tensor.at + tensor.rows + t.first_matrix * width + column] = sum;
}

__global__ void ShareOfNew(double beta2_decay, const UpdateFactors* factors,
                           const float* coefficient, float* fresh) {
  if (!IsFinite(*coefficient)) return;
  *fresh = static_cast<float>(pow(static_cast<double>(factors->update), beta2_decay));
}

__device__ inline float Folded(float moment, float fresh, float sum, int64_t n) {
  return __fmaf_rn(fresh, sum / static_cast<float>(n) - moment, moment);
}

// A block has a tensor. Tall matrices are the whole block's, one after the other; of others each
// thread has its own.
__global__ void __launch_bounds__(kThreads)
    FoldTensors(const __grid_constant__ TensorsOfLaunch tensors, float eps1,
                const float* coefficient, const Sums s) {
  if (!IsFinite(*coefficient)) return;
  const FactoredTensor& t = tensors.at[blockIdx.x];
  const float fresh = *s.fresh;
  const int64_t height = t.matrix_rows, matrices = t.rows / height;
  const bool together = height >= kThreads;
  const int64_t lane = together ? threadIdx.x : 0, lanes = together ? kThreads : 1;
  __shared__ float shared[kWarps];
  for (int64_t m = together ? 0 : threadIdx.x; m < matrices; m += together ? 1 : kThreads) {
    float sum = 0;
    for (int64_t r = lane; r < height; r += lanes) {
      const int64_t i = t.at + m * height + r;
      s.moments[i] = Folded(s.moments[i], fresh, s.sums[i], t.columns);
      sum += s.moments[i];
    }
    if (together) {
      __syncthreads();  // The matrix before has been read.
      sum = BlockSum(sum, shared);
    }
    const float mean = fmaxf(sum / static_cast<float>(height), eps1);
    for (int64_t r = lane; r < height; r += lanes) {
      const int64_t i = t.at + m * height + r;
      s.sums[i] = s.moments[i] / mean;
    }
  }
  for (int64_t c = threadIdx.x; c < matrices * t.columns; c += kThreads) {
    const int64_t i = t.at + t.rows + c;
    s.moments[i] = Folded(s.moments[i], fresh, s.sums[i], height);
  }
}

// u of an element before the tensor's factor; of a vector also what v becomes.
struct Unscaled {
  float u, v;
};
__device__ inline Unscaled UnscaledOf(const TiledPiece& t, int64_t r, int64_t c, float x,
                                      float least, const float* v, int64_t at, const Sums& s) {
  const FactoredTensor& tensor = t.piece.tensor;
  float e;
  if (tensor.matrix_rows > 0) {
    const int64_t matrix = tensor.matrix_rows == tensor.rows ? 0 : r / tensor.matrix_rows;
    e = __fmul_rn(s.sums[tensor.at + r],
                  s.moments[tensor.at + tensor.rows + matrix * tensor.columns + c]);
  } else {
    e = __fmaf_rn(*s.fresh, __fmul_rn(x, x) - v[at], v[at]);
  }
  return {x / sqrtf(fmaxf(e, least)), e};
}

template <typename G>
__global__ void __launch_bounds__(kThreads)
    SquareTiles(const __grid_constant__ PiecesOfLaunch pieces, float least,
                const float* coefficient, const G* g, const float* v, const Sums s,
                float* workspace) {
  const TiledPiece& t = pieces.at[blockIdx.y];
  const int64_t tile = blockIdx.x;
  if (tile >= t.tiles || !IsFinite(*coefficient)) return;
  __shared__ float shared[kWarps];
  const Tile rows(t, tile);
  float sum = 0;
  for (int64_t r = rows.row; r < rows.end_row; ++r) {
#pragma unroll
    for (int j = 0; j < kColumnsOfThread; ++j) {
      const int64_t c = rows.column + j * kThreads + threadIdx.x;
      int64_t at;
      if (!Tile::Has(t, r, c, at)) continue;
      const float x = *coefficient * ToFloat(g[at]);
      const float u = UnscaledOf(t, r, c, x, least, v, at, s).u;
      sum = __fmaf_rn(u, u, sum);
    }
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) workspace[t.of_tiles + tile] = sum;
}

__device__ inline float ScaleOf(const FactoredTensor& t, const FactoredConstants& constants,
                                const UpdateFactors& factors, const Sums& s) {
  const auto n = static_cast<float>(t.rows * t.columns);
  const float weight = sqrtf(s.weights[t.index] / n), update = sqrtf(s.updates[t.index] / n);
  const double most = 1 / sqrt(static_cast<double>(factors.update));
  const double lr = t.lr_scale * factors.lr;
  const auto share = static_cast<float>(lr > most ? most / lr : 1);
  return fmaxf(constants.eps2, weight) * share / fmaxf(1.0f, update / constants.d);
}

template <typename G>
__global__ void __launch_bounds__(kThreads)
    WriteTiles(const __grid_constant__ PiecesOfLaunch pieces, const FactoredConstants constants,
               const UpdateFactors* factors, const float* coefficient, const G* g, float* v,
               const Sums s, float* u) {
  const TiledPiece& t = pieces.at[blockIdx.y];
  const int64_t tile = blockIdx.x;
  if (tile >= t.tiles || !IsFinite(*coefficient)) return;
  __shared__ float scale;
  if (threadIdx.x == 0) scale = ScaleOf(t.piece.tensor, constants, *factors, s);
  __syncthreads();
  const Tile rows(t, tile);
  for (int64_t r = rows.row; r < rows.end_row; ++r) {
#pragma unroll
    for (int j = 0; j < kColumnsOfThread; ++j) {
      const int64_t c = rows.column + j * kThreads + threadIdx.x;
      int64_t at;
      if (!Tile::Has(t, r, c, at)) continue;
      const float x = *coefficient * ToFloat(g[at]);
      const Unscaled unscaled = UnscaledOf(t, r, c, x, constants.least, v, at, s);
      u[at] = __fmul_rn(scale, unscaled.u);
      if (t.piece.tensor.matrix_rows == 0) v[at] = unscaled.v;
    }
  }
}

// Calls body(pieces, grid) for each launch. grid.x: blocks of the piece that has most, by `blocks`.
template <typename Blocks, typename Body>
void ForEachLaunch(const std::vector<TiledPiece>& pieces, const Blocks& blocks, const Body& body) {
  for (size_t at = 0; at < pieces.size(); at += kPiecesOfLaunch) {
    const size_t count = std::min<size_t>(kPiecesOfLaunch, pieces.size() - at);
    PiecesOfLaunch launch{};
    int64_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      launch.at[i] = pieces[at + i];
      most = std::max<int64_t>(most, blocks(pieces[at + i]));
    }
    body(launch, dim3(static_cast<unsigned>(most), static_cast<unsigned>(count)));
  }
}

int64_t TilesOfPiece(const TiledPiece& t) { return t.tiles; }

template <typename Function>
void ForMaster(DType dtype, const Function& f) {
  dtype == DType::kBFloat16 ? f(Is<__nv_bfloat16>()) : f(Is<float>());
}

}  // namespace

void FactorSumsCuda(CudaStreamHandle stream, const std::vector<TiledPiece>& pieces,
                    const ConstView& coefficient, const ConstView& g, const ConstView& p,
                    const FactoredSums& sums, const View& workspace) {
  ForEachLaunch(pieces, TilesOfPiece, [&](const PiecesOfLaunch& launch, dim3 grid) {
    ForFloat(g.dtype, [&](auto of_g) {
      ForMaster(p.dtype, [&](auto of_p) {
        using G = typename decltype(of_g)::type;
        using P = typename decltype(of_p)::type;
        Launch<SumTiles<G, P>>(stream, grid, kThreads, 0, launch, coefficient.As<float>(),
                               g.As<G>(), p.As<P>(), workspace.As<float>());
      });
    });
  });
  const auto blocks = [](const TiledPiece& t) { return 1 + CeilDiv(t.values, kThreads); };
  ForEachLaunch(pieces, blocks, [&](const PiecesOfLaunch& launch, dim3 grid) {
    Launch<GatherTiles>(stream, grid, kThreads, 0, launch, coefficient.As<float>(),
                        workspace.As<float>(), sums.weights.As<float>(), sums.sums.As<float>());
  });
}

void FoldFactorsCuda(CudaStreamHandle stream, const std::vector<FactoredTensor>& tensors,
                     double beta2_decay, float eps1, const ConstView& factors,
                     const ConstView& coefficient, const FactoredSums& sums) {
  Launch<ShareOfNew>(stream, 1, 1, 0, beta2_decay, factors.As<UpdateFactors>(),
                     coefficient.As<float>(), sums.fresh.As<float>());
  for (size_t at = 0; at < tensors.size(); at += kTensorsOfLaunch) {
    const size_t count = std::min<size_t>(kTensorsOfLaunch, tensors.size() - at);
    TensorsOfLaunch launch{};
    std::copy_n(tensors.begin() + static_cast<std::ptrdiff_t>(at), count, launch.at);
    Launch<FoldTensors>(stream, static_cast<unsigned>(count), kThreads, 0, launch, eps1,
                        coefficient.As<float>(), AddressesOf(sums));
  }
}

void UpdateSquaresCuda(CudaStreamHandle stream, const std::vector<TiledPiece>& pieces,
                       const FactoredConstants& constants, const ConstView& coefficient,
                       const ConstView& g, const ConstView& v, const FactoredSums& sums,
                       const View& workspace) {
  ForEachLaunch(pieces, TilesOfPiece, [&](const PiecesOfLaunch& launch, dim3 grid) {
    ForFloat(g.dtype, [&](auto of_g) {
      using G = typename decltype(of_g)::type;
      Launch<SquareTiles<G>>(stream, grid, kThreads, 0, launch, constants.least,
                             coefficient.As<float>(), g.As<G>(), v.As<float>(), AddressesOf(sums),
                             workspace.As<float>());
    });
    Launch<GatherTiles>(stream, dim3(1, grid.y), kThreads, 0, launch, coefficient.As<float>(),
                        workspace.As<float>(), sums.updates.As<float>(), sums.sums.As<float>());
  });
}

void FactoredUpdateCuda(CudaStreamHandle stream, const std::vector<TiledPiece>& pieces,
                        const FactoredConstants& constants, const ConstView& factors,
                        const ConstView& coefficient, const ConstView& g, const View& v,
                        const FactoredSums& sums, const View& u) {
  ForEachLaunch(pieces, TilesOfPiece, [&](const PiecesOfLaunch& launch, dim3 grid) {
    ForFloat(g.dtype, [&](auto of_g) {
      using G = typename decltype(of_g)::type;
      Launch<WriteTiles<G>>(stream, grid, kThreads, 0, launch, constants,
                            factors.As<UpdateFactors>(), coefficient.As<float>(), g.As<G>(),
                            v.As<float>(), AddressesOf(sums), u.As<float>());
    });
  });
}

}  // namespace fsdp
