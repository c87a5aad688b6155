// The passes of Adafactor (Shazeer and Stern 2018, arXiv:1804.04235), in the order of
// torch.optim.Adafactor. The second moment of a matrix is kept as the means of its rows and of its
// columns. A rank has pieces of tensors in its shard: it adds up what they hold, ranks add their
// sums, and all of them fold the same sums into the same moments. For an element of row r and
// column c of a tensor of n elements, where g is coefficient[0] times the gradient, t the number of
// the update, and fresh = t^beta2_decay:
//   rows[r]    += fresh (mean of g^2 in row r - rows[r])              FactorSums(), FoldFactors()
//   columns[c] += fresh (mean of g^2 in column c - columns[c])
//   e           = rows[r] columns[c] / max(mean of rows, eps1)
//   e           = v, with v += fresh (g^2 - v)                        for vectors
//   u           = g / sqrt(max(e, eps1^2))                            UpdateSquares()
//   u          *= max(eps2, rms(p)) min(1, 1 / (s lr sqrt(t))) / max(1, rms(u) / d)
//                                                                     FactoredUpdate()
// p -= s lr u is Sgd()'s (update.h), with weight decay. A tensor of more than two dimensions is a
// row of matrices, its last two dimensions, each with moments of its own; rms() is the tensor's.
//   Skipping  A coefficient that is not finite changes nothing.
//   Sums      fp32, of tiles of kTileRows x kTileColumns, whose sums are added in order: no result
//             depends on threads. Results of the two types of device differ by rounding.
// g: fp32, bf16 or fp16; p: fp32 or bf16; all else fp32.
// Tests: tests/trainer/ops/factored_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_FACTORED_H_
#define FSDP_TRAIN_TRAINER_OPS_FACTORED_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct FactoredTensor {
  int64_t rows = 1, columns = 1;  // rows: of all its matrices, one behind the other.
  int64_t matrix_rows = 0;        // Rows of one of them; 0: a vector, whose `rows` is 1.
  int64_t at = 0;                 // Its first row in `sums` and `moments`; columns follow.
  int64_t index = 0;              // In `weights` and `updates`.
  double lr_scale = 1;            // s.

  int64_t matrices() const { return matrix_rows == 0 ? 0 : rows / matrix_rows; }
  // Values in `sums` and `moments`.
  int64_t values() const { return matrix_rows == 0 ? 0 : rows + matrices() * columns; }
};

// Elements [first, first + count) of the tensor are elements [at, at + count) of g, p, v and u.
struct FactoredPiece {
  FactoredTensor tensor;
  int64_t first = 0, count = 0, at = 0;
};

// Sums and moments of all tensors.
struct FactoredSums {
  View sums;     // Sums of squared gradients by row and by column, then rows[r] / max(mean, eps1).
  View weights;  // By tensor: the sum of p^2.
  View updates;  // By tensor: the sum of u^2.
  View moments;  // rows, columns.
  View fresh;    // [1]
};
template <typename Visit>
void ForEachAddress(FactoredSums& s, const Visit& visit) {
  visit(s.sums), visit(s.weights), visit(s.updates), visit(s.moments), visit(s.fresh);
}

struct FactoredOptions {
  double beta2_decay = -0.8;   // At most 0.
  double eps1 = 1.1920929e-7;  // At least kMinFactoredEps, so that its square is normal.
  double eps2 = 1e-3;          // >= 0.
  double d = 1;                // >= 1.
};
inline constexpr double kMinFactoredEps = 1.1e-19;

// fp32 elements of the workspace of FactorSums() and UpdateSquares() for these pieces.
int64_t FactoredWorkspaceElements(const std::vector<FactoredPiece>& pieces);

// Sets this shard's part of sums and weights; values of other rows, columns and tensors stay.
// 6 FLOPs an element.
void FactorSums(Stream& stream, const std::vector<FactoredPiece>& pieces, ConstView coefficient,
                ConstView g, ConstView p, const FactoredSums& sums, View workspace);

// Folds sums over all ranks into moments. factors: of DeriveUpdateFactors(), for t.
void FoldFactors(Stream& stream, const std::vector<FactoredTensor>& tensors,
                 const FactoredOptions& options, ConstView factors, ConstView coefficient,
                 const FactoredSums& sums);

// Sets this shard's part of `updates`. v: of pieces of vectors; View() where there are none. 8
// FLOPs an element.
void UpdateSquares(Stream& stream, const std::vector<FactoredPiece>& pieces,
                   const FactoredOptions& options, ConstView coefficient, ConstView g, ConstView v,
                   const FactoredSums& sums, View workspace);

// u, and v. Elements of u in no piece stay. 8 FLOPs an element.
void FactoredUpdate(Stream& stream, const std::vector<FactoredPiece>& pieces,
                    const FactoredOptions& options, ConstView factors, ConstView coefficient,
                    ConstView g, View v, const FactoredSums& sums, View u);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_FACTORED_H_
