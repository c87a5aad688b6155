// Matrix products for the kernels of other ops: not an op itself. Runs during the call.
//
//   C[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C + bias + D        row-major
//
// Each of A, B and C is fp32, bf16 or fp16, D of C's dtype; alpha, beta, bias and sums are fp32.
// Factors are converted exactly, and a C that is not fp32 is rounded once, to nearest, at the end.
//
// The method is that of Goto and van de Geijn 2008 (doi:10.1145/1356052.1356053): blocks of B are
// packed so that they stay in a core's second-level cache while all rows of A pass by. Libraries
// are not used: OpenBLAS 0.3.21 was slower (docs/benchmarks/cpu.md), had a lock around its buffers,
// and gave bits that changed with the split among threads.
//
// Every element is summed over k in order, by fused multiply-add, in blocks whose borders depend on
// k alone. Equal operands give equal bits whatever the number of threads, the split among them, the
// width of the processor's vectors, and whatever else is in the product. Where both factors are
// bf16, k runs 1, 0, 3, 2, ... in each block, and an odd k is padded with a zero. VDPBF16PS has
// this order for its two elements, so processors with and without it agree (gemm_pairs.h).
//
// Tiles (kind amx of kinds.h) have another order for products of two bf16, that of TDPBF16PS:
//
//   sum = 0
//   for each 32 k, in order, the last ones padded with zeros:
//     even = odd = 0
//     for p in 0..15:  even = fma(a[2p], b[2p], even),  odd = fma(a[2p+1], b[2p+1], odd)
//     sum = sum + (even + odd)
//   C = round(fma(beta, C, alpha sum) + bias + D)
//
// all in fp32, to nearest even, and subnormals are read and written as zero. No block, split or
// number of threads shows in it, either.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_H_

#include <cstdint>
#include <functional>

#include "trainer/ops/gemm_operand.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Rows [row, row + rows) and columns [col, col + cols) of C.
struct GemmTile {
  int64_t row = 0, rows = 0;
  int64_t col = 0, cols = 0;
};

struct GemmOptions {
  float alpha = 1;
  float beta = 0;               // 0: C is not read.
  const float* bias = nullptr;  // [n], added to every row.
  const void* added = nullptr;  // D, of C's dtype and stride, added last; null: none.
  // B of the product that this thread computes next, which has this one's shape and strides: it is
  // fetched ahead. Null: nobody knows.
  const void* next_b = nullptr;
  // Called for tiles that cover C, on the thread that computed the tile, when its elements have
  // their final values and are still in a first-level cache. For the work behind a product: an
  // activation, a sum.
  std::function<void(const GemmTile&)> finish = nullptr;
  // Memory that finish() reads or writes besides, of C's dtype and stride: it may be fetched ahead.
  const void* finished_with = nullptr;
};

// The most bytes in which a thread packs and sums; it keeps them until it ends. Bytes that no
// product needs are never touched.
inline constexpr int64_t kGemmBytesPerThread = int64_t{10} << 20;

// Runs on all threads of the pool. C overlaps none of A, B, bias and D.
void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, const GemmResult& c, const GemmOptions& options = {});

// The same, on the calling thread alone: for ops that divide many products among threads.
void GemmOnOneThread(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                     const GemmResult& c, const GemmOptions& options = {});

// Rows and columns that a kernel computes together, and the products that are worth a thread.
struct GemmGrain {
  int64_t rows, cols;
  double products;
};

// The tile of C that thread `part` of `parts` computes; may be empty. `pack_a`: A is packed, not
// read where it lies.
GemmTile GemmPart(int64_t m, int64_t n, int64_t k, const GemmGrain& grain, bool pack_a, int parts,
                  int part);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_H_
