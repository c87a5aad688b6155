// The interface between Gemm() and the kernels of an instruction set.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_STRIP_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_STRIP_H_

#include <cstdint>

namespace fsdp {

// Rows of so many cache lines, `row` bytes apart.
struct GemmLines {
  const char* at;
  int64_t rows, row, lines;

  GemmLines Part(int64_t part, int64_t parts) const {
    const int64_t first = rows * part / parts;
    return {at + first * row, rows * (part + 1) / parts - first, row, lines};
  }
};

// A row of tiles: C[rows, cols] (+)= alpha A[rows, k] B[k, cols] + bias + D. A step of k is 4 bytes
// of a factor: a float, or two bf16. Distances in A and B are bytes, in C elements.
struct GemmStrip {
  // Element [i, l] of A is at a + i a_row + l a_k; one of a_row and a_k is 4.
  const char* a;
  int64_t a_row, a_k;
  // The begin of the next strip's A, which is prefetched meanwhile: rows of k elements of
  // next_element bytes, next_row apart. May be null.
  const char* next;
  int64_t next_rows, next_row, next_element;
  // The part of B that is packed next, or this strip's share of it: prefetched likewise. `lines` of
  // more than k / 16 are not all fetched.
  GemmLines soon;
  // Columns [j kCols, (j + 1) kCols) of B begin at b + j b_tile; row l of them is at + l b_k.
  // Elements beyond `cols` may be anything, but must be readable, unless b_ends: then none is read.
  // b_ends is for an A whose a_k is not 4.
  const char* b;
  int64_t b_tile, b_k;
  bool b_ends;
  float* c;
  int64_t c_row;
  int64_t rows, cols, k;  // 0 < rows <= kRows.
  float alpha;
  bool add;            // Adds to C; otherwise C is not read.
  const float* bias;   // [cols], added too; may be null.
  const float* added;  // D[rows, cols], rows c_row apart, added last; may be null.
};

// An instruction set's part of Gemm().
struct GemmKernels {
  int64_t rows, cols;  // Per tile.
  void (*strip)(const GemmStrip& strip);
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_STRIP_H_
