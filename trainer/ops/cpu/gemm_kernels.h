// The innermost loops of Gemm(), for each instruction set (isa.h).
//
// A tile of C, kRows x kCols, stays in registers while k runs: an element is the sum over k in
// order, by fused multiply-add, from zero. That holds for every width, so the bits of a product
// do not depend on the instruction set.
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_KERNELS_H_

#include <cstdint>

namespace fsdp {

// A row of tiles: C[rows, cols] (+)= alpha A[rows, k] B[k, cols] + bias.
struct GemmStrip {
  // Element [i, l] of A is a[i a_row + l a_k]; one of the two steps is 1.
  const float* a;
  int64_t a_row, a_k;
  // Where the next strip's A begins, to be brought nearer meanwhile: rows of k elements, a_row
  // apart. May be null.
  const float* next;
  int64_t next_rows;
  // Columns [j kCols, (j + 1) kCols) of B begin at b + j b_tile; row l of them at + l b_k. What
  // lies beyond `cols` may be anything, but must be readable.
  const float* b;
  int64_t b_tile, b_k;
  float* c;
  int64_t c_row;
  int64_t rows, cols, k;  // 0 < rows <= kRows.
  float alpha;
  bool add;           // To what C holds; otherwise C is not read.
  const float* bias;  // [cols], added too; may be null.
};

// An instruction set's part of Gemm().
struct GemmKernels {
  int64_t rows, cols;  // Of a tile.
  void (*strip)(const GemmStrip& strip);
};

extern const GemmKernels kGemmAvx2, kGemmAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_KERNELS_H_
