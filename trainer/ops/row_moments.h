// NorMuon's second moments of the rows of a matrix's update (Li et al. 2025, arXiv:2510.05491;
// normuon_update() of normuon.py in github.com/zichongli5/NorMuon). O = scale * y is the update.
// Its lines are the rows of y, or its columns where y is transposed; line i has elements O[i, :]:
//   v[i] <- beta2 v[i] + (1 - beta2) mean_j O[i, j]^2
//   N[i, j] = O[i, j] / (sqrt(v[i]) + eps)
//   y[i, j] <- N[i, j] |O| / (|N| + eps)
// So O keeps its Frobenius norm, as in the authors' code. In the paper the norm becomes
// 0.2 sqrt(m n), which is nearly that of 0.2 sqrt(max(m, n)) O.
#ifndef FSDP_TRAIN_TRAINER_OPS_ROW_MOMENTS_H_
#define FSDP_TRAIN_TRAINER_OPS_ROW_MOMENTS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct RowMomentsOptions {
  double beta2 = 0.95;   // In [0, 1).
  double eps = 1e-10;    // > 0.
  bool columns = false;  // Lines are the columns of y.
};

// y: [m, n], fp32 or bf16, at least one element; it is overwritten. v: [lines], fp32, the state.
// workspace: [lines], fp32. gate: [1], fp32: where it is not finite, the step is skipped, v keeps
// its values, and y has no meaning. Sums of squares of a line are fp32, those over lines float64;
// y is rounded once. A zero y stays zero. Bits do not depend on threads.
// Throws std::invalid_argument before anything is enqueued: options, shapes, dtypes, overlaps.
void NormalizeRows(Stream& stream, const RowMomentsOptions& options, float scale, ConstView gate,
                   View y, View v, View workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROW_MOMENTS_H_
