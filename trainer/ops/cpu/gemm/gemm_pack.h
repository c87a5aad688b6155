// Factors of a product in the form that Gemm()'s kernels read: tiles in a row, each with its steps
// of k one after another.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PACK_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PACK_H_

#include <cstdint>

#include "trainer/core/dtype.h"

namespace fsdp {

// The 4 bytes of a packed factor that make one step of k.
enum class GemmForm {
  kFloats,         // An element as fp32.
  kSwappedFloats,  // The same, k in the order 1, 0, 3, 2, ...; an odd k is padded with a zero.
  kPairs,          // Two bf16 of consecutive k, the even one first; an odd k is padded with a zero.
};

// The number of steps for k elements.
constexpr int64_t GemmSteps(GemmForm form, int64_t k) {
  if (form == GemmForm::kPairs) return (k + 1) / 2;
  return form == GemmForm::kSwappedFloats ? (k + 1) / 2 * 2 : k;
}

// Steps from a packed tile to the next. The distance is a cache line more than the tile's own size,
// or the same lines of all tiles would fall into one set of the cache.
constexpr int64_t GemmTileSteps(int64_t steps, int64_t width) { return steps * width + 16; }

// A matrix as it lies in memory, fp32, bf16 or fp16. One of row and col is the element's size.
struct GemmMatrix {
  const char* data;
  int64_t row, col;  // Bytes from an element to the next in its column; in its row.
  DType dtype;

  const char* At(int64_t i, int64_t j) const { return data + i * row + j * col; }
  bool RowsAreContiguous() const { return col == SizeOf(dtype); }
};

// Packs x[k, cols] as tiles of `width` columns. The last tile's elements beyond `cols` may be
// anything: nobody keeps their results. Only bf16 has pairs.
void GemmPack(GemmForm form, const GemmMatrix& x, int64_t k, int64_t cols, int64_t width,
              float* to);

// Writes x[rows, k] as floats, row after row `next_row` floats apart, k in the form's order and
// padded as it says. Rows of x are contiguous. Pairs have no floats.
void GemmWiden(GemmForm form, const GemmMatrix& x, int64_t rows, int64_t k, float* to,
               int64_t next_row);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PACK_H_
