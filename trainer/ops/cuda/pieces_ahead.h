// Loops in which a thread reads packs before it needs them, with indices of 32 bits.
// Tests: tests/trainer/ops/swiglu_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_PIECES_AHEAD_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_PIECES_AHEAD_H_

#include "trainer/ops/cuda/elements.h"

namespace fsdp {

// Calls read(at, slot), then use(at, slot), for at = begin, begin + step, ... < end. Each read runs
// kAhead turns before its use. Slots are 0 to kAhead - 1, constants once the loop is unrolled.
constexpr int kAhead = 2;
template <typename Read, typename Use>
__device__ inline void ForEachAhead(int begin, int end, int step, const Read& read,
                                    const Use& use) {
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) {
    if (begin + slot * step < end) read(begin + slot * step, slot);
  }
  for (int at = begin; at < end;) {
#pragma unroll
    for (int slot = 0; slot < kAhead && at < end; ++slot, at += step) {
      use(at, slot);
      if (at + kAhead * step < end) read(at + kAhead * step, slot);
    }
  }
}

// Whether an int can number the packs of these rows, and a grid of GridOfPieces() has room for a
// row.
inline bool FitsInt(int64_t rows, int64_t packs_of_row) {
  constexpr int64_t kMost = int64_t{1} << 30, kMostOfRow = int64_t{1} << 23;
  return rows < kMost && packs_of_row < kMostOfRow && rows * packs_of_row < kMost;
}

// A grid whose threads each have one piece of several rows, and read one while they work on
// another.
constexpr int kRowsOfThread = 8;
inline RowGrid GridOfPieces(int64_t rows, int64_t pieces) {
  RowGrid on = GridOfRows(rows, pieces);
  on.grid.x = static_cast<unsigned>(CeilDiv(rows, int64_t{kRowsOfThread} * on.block.y));
  on.grid.y = static_cast<unsigned>(CeilDiv(pieces, on.block.x));
  return on;
}

// In a kernel on such a grid: the thread's piece, and its rows begin, begin + step, ... < end.
struct PieceOfRows {
  int piece, begin, step, end;

  __device__ PieceOfRows(int rows, int pieces)
      : piece(static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x)),
        begin(static_cast<int>(blockIdx.x * kRowsOfThread * blockDim.y + threadIdx.y)),
        step(static_cast<int>(blockDim.y)),
        end(piece < pieces ? min(rows, begin + kRowsOfThread * step) : 0) {}
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_PIECES_AHEAD_H_
