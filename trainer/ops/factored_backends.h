// Kernels of factored.h, and the tiles in which they go through a piece.
// Tests: tests/trainer/ops/factored_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_FACTORED_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_FACTORED_BACKENDS_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/factored.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

inline constexpr int kTileRows = 128, kTileColumns = 1024;

// A piece in tiles: blocks of rows, none of which reaches over two matrices, times stripes of
// columns. Tiles count along stripes first. Sums of tiles lie in the workspace: of their rows, of
// their columns, and one of all they hold.
struct TiledPiece {
  FactoredPiece piece;
  int64_t rows_in_matrix = 1, blocks_in_matrix = 1, stripes = 1;
  int64_t first_row = 0, rows = 0;      // Rows that the piece touches.
  int64_t first_block = 0, blocks = 0;  // Blocks of rows.
  int64_t first_matrix = 0, matrices = 0;
  // In the workspace: [rows, stripes], [blocks, columns], [blocks, stripes].
  int64_t of_rows = 0, of_columns = 0, of_tiles = 0;

  int64_t tiles = 0, values = 0;  // values: rows and columns whose sums it has.

  // Rows [RowOfBlock(), EndOfBlock()) are the tensor's in the piece's block number `block`.
  int64_t RowOfBlock(int64_t block) const;
  int64_t EndOfBlock(int64_t block) const;
};

// Pieces one behind the other in the workspace.
std::vector<TiledPiece> TilesOf(const std::vector<FactoredPiece>& pieces);

// The most pieces, and tensors, of one launch, which are among its arguments.
inline constexpr int kPiecesOfLaunch = 20, kTensorsOfLaunch = 64;

// FactoredOptions as the kernels of pieces need them.
struct FactoredConstants {
  float least = 0;  // eps1^2.
  float eps2 = 0, d = 1;
};

[[gnu::weak]] void FactorSumsCuda(CudaStreamHandle stream, const std::vector<TiledPiece>& pieces,
                                  const ConstView& coefficient, const ConstView& g,
                                  const ConstView& p, const FactoredSums& sums,
                                  const View& workspace);
[[gnu::weak]] void FoldFactorsCuda(CudaStreamHandle stream,
                                   const std::vector<FactoredTensor>& tensors, double beta2_decay,
                                   float eps1, const ConstView& factors,
                                   const ConstView& coefficient, const FactoredSums& sums);
[[gnu::weak]] void UpdateSquaresCuda(CudaStreamHandle stream, const std::vector<TiledPiece>& pieces,
                                     const FactoredConstants& constants,
                                     const ConstView& coefficient, const ConstView& g,
                                     const ConstView& v, const FactoredSums& sums,
                                     const View& workspace);
[[gnu::weak]] void FactoredUpdateCuda(CudaStreamHandle stream,
                                      const std::vector<TiledPiece>& pieces,
                                      const FactoredConstants& constants, const ConstView& factors,
                                      const ConstView& coefficient, const ConstView& g,
                                      const View& v, const FactoredSums& sums, const View& u);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_FACTORED_BACKENDS_H_
