// Copies of pieces of matrices: between shards, where a matrix may lie in stretches, packed
// tensors, in which pieces lie one behind the other, and whole matrices, as they lie or transposed.
// Tests: tests/trainer/ops/newton_schulz_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_MATRIX_PIECES_H_
#define FSDP_TRAIN_TRAINER_OPS_MATRIX_PIECES_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Elements [first, first + count) of a matrix whose rows have `width` elements. The first one is
// element `packed` of a packed tensor, and the others follow. Element (r, c) of the matrix is
// element begin + r * row_pitch + c * column_pitch of a spread one. `begin` may be below 0: the
// matrix may begin before the tensor, in which the piece alone lies.
struct SpreadPiece {
  int64_t first = 0, count = 0, width = 1;
  int64_t packed = 0;
  int64_t begin = 0, row_pitch = 1, column_pitch = 1;
};

// packed = spread, and spread = scale * packed, for these pieces; other elements keep their values.
// Tensors are fp32 or bf16, of any shape. Products are fp32 and are rounded once, to nearest.
// Pieces of one call must not share an element. No workspace. 4 to 8 bytes and, with a scale, 1
// FLOP an element. Throws std::invalid_argument before anything is enqueued: dtypes, pieces that
// leave a tensor, tensors that overlap.
void PackPieces(Stream& stream, const std::vector<SpreadPiece>& pieces, ConstView spread,
                View packed);
void SpreadPieces(Stream& stream, const std::vector<SpreadPiece>& pieces, float scale,
                  ConstView packed, View spread);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_MATRIX_PIECES_H_
