// Products of two bf16 factors on tiles (AMX, TDPBF16PS), and the same by vectors on any processor.
//
// The sums are those that gemm.h defines for tiles. Factors, edges, blocks and the way of sums are
// one template (tile_product.h); only what is done to a tile differs, so that a processor without
// tiles tests all but the instructions.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILES_H_

#include <cstdint>

namespace fsdp {

// A factor as it lies in memory: element [i, l] is at data + i * next_i + l * next_k, in bytes. i
// is a row of op(A) or a column of op(B). One of the distances is an element.
struct TileFactor {
  const char* data;
  int64_t next_i, next_k;
};

struct TileProduct {
  TileFactor a, b;
  int64_t rows, cols, k;
  char* memory;  // kTileProductBytes, at a cache line: packed factors, sums.
  // Where finish() will write: fetched ahead, not read. Distances in bytes; null: nowhere.
  const char* c;
  int64_t c_row, c_element;
  // Gets the sums of rows [row, row + rows) and columns [col, col + cols), which it may change: row
  // r begins at sums + r * next_row. Called for pieces that cover the product, in its thread.
  void (*finish)(const void* context, float* sums, int64_t next_row, int64_t row, int64_t rows,
                 int64_t col, int64_t cols) noexcept;
  const void* context;
};

inline constexpr int64_t kTileProductBytes = int64_t{10} << 20;

// Rows and columns of a product that are computed together.
inline constexpr int64_t kTilesTogether = 32;

struct GemmTileKernels {
  // Runs during the call, on its thread, whose mode for subnormals does not matter. Only the
  // elements of the factors are read.
  void (*multiply)(const TileProduct& product);
};

extern const GemmTileKernels kGemmTilesAvx2, kGemmTilesAvx512;
// For processors with tiles, in processes that the system lets use them (kinds.h).
extern const GemmTileKernels kGemmTilesAmx;

// Whether some thousand sums of fixed products, any bits among them, are those of kGemmTilesAvx2.
bool TilesGiveTheDefinition(const GemmTileKernels& kernels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILES_H_
