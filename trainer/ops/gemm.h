// Matrix products for the kernels of other ops: not an op itself. Runs where it is called.
//
//   C[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C        float32, row-major
//
// OpenBLAS's serial build on our own threads: which element is computed how depends on the shape
// and the number of threads alone, so equal calls give equal bits. (A threaded BLAS chooses by
// itself; some of them give other bits from run to run.)
#ifndef FSDP_TRAIN_TRAINER_OPS_GEMM_H_
#define FSDP_TRAIN_TRAINER_OPS_GEMM_H_

#include <cstdint>
#include <functional>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// A factor as it lies in memory: row r starts at data + r * stride, and op() transposes it or not.
struct GemmOperand {
  const float* data = nullptr;
  int64_t stride = 0;  // Elements, >= the length of a stored row.
  bool transposed = false;
};

// Rows [row, row + rows) and columns [col, col + cols) of C.
struct GemmTile {
  int64_t row = 0, rows = 0;
  int64_t col = 0, cols = 0;
};

// On the calling thread: for use inside a task of a pool. beta = 0 does not read C. C overlaps
// neither factor.
void GemmSerial(int64_t m, int64_t n, int64_t k, float alpha, const GemmOperand& a,
                const GemmOperand& b, float beta, float* c, int64_t c_stride);

// One tile of the product; the arguments describe the whole.
void GemmSerial(const GemmTile& tile, int64_t k, float alpha, const GemmOperand& a,
                const GemmOperand& b, float beta, float* c, int64_t c_stride);

// Over all threads of the pool.
void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, float alpha, const GemmOperand& a,
          const GemmOperand& b, float beta, float* c, int64_t c_stride);

// Gemm()'s split, for ops that do something to a tile before or after its product: calls
// body(tile) for disjoint tiles that cover C, each on its own thread.
void ForEachGemmTile(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                     const std::function<void(const GemmTile&)>& body);

// OpenBLAS's name for the kernels in use, such as "Haswell": for a run's provenance, because two
// machines agree to the bit only where it is the same.
const char* GemmKernels();

// Tile `part` of ForEachGemmTile with this many threads; may be empty.
GemmTile GemmPart(int64_t m, int64_t n, int64_t k, int parts, int part);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GEMM_H_
