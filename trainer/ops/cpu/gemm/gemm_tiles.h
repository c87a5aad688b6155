// Products of two bf16 factors on tiles (AMX, TDPBF16PS), and the same by vectors on any processor.
//
// The sums are those that gemm.h defines for tiles. Factors, edges, blocks and the way of sums are
// one template (tile_product.h); only what is done to a tile differs, so that a processor without
// tiles tests all but the instructions.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_TILES_H_

#include <cstdint>

#include "trainer/core/dtype.h"

namespace fsdp {

// A factor as it lies in memory: element [i, l] is at data + i * next_i + l * next_k, in bytes. i
// is a row of op(A) or a column of op(B). One of the distances is an element.
struct TileFactor {
  const char* data;
  int64_t next_i, next_k;
};

// C = round(fma(beta, C, alpha A B) + bias + D), in fp32 (gemm.h). Distances are bytes.
struct TileProduct {
  TileFactor a, b;
  int64_t rows, cols, k;
  char* memory;  // kTileProductBytes, at a cache line: packed factors, sums.
  char* c;
  int64_t c_row;  // From a row of C, and of D, to the next.
  DType dtype;    // C's and D's: fp32, bf16 or fp16.
  float alpha = 1;
  float beta = 0;               // 0: C is not read.
  const float* bias = nullptr;  // [cols]; may be null.
  const char* added = nullptr;  // D; may be null.
  // Called in the product's thread for pieces that cover C, when their elements have their values;
  // may be null. finished_with: memory that it touches besides, as C lies, to be fetched ahead; may
  // be null.
  void (*finish)(const void* context, int64_t row, int64_t rows, int64_t col,
                 int64_t cols) noexcept = nullptr;
  const void* context = nullptr;
  const char* finished_with = nullptr;
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
