// Newton and Schulz's iteration towards the nearest semi-orthogonal matrix, as Muon uses it (Jordan
// et al. 2024, kellerjordan.github.io/posts/muon; _zeropower_via_newtonschulz of torch.optim.Muon).
// X: [m, n] with m <= n; X_0 = X / max(|X|, eps), with the Frobenius norm. A step is
//   A = X X^T        B = b A + c A A        X <- a X + B X
// A and A A are symmetric: blocks of rows are multiplied up to the diagonal's block alone, and the
// other half is copied. So a symmetric product costs 7/12 of a whole one, where six blocks divide
// m. Instead of X a step keeps Y = X / a^k, so that a X needs no rounding: Y <- Y + (B / a) Y.
#ifndef FSDP_TRAIN_TRAINER_OPS_NEWTON_SCHULZ_H_
#define FSDP_TRAIN_TRAINER_OPS_NEWTON_SCHULZ_H_

#include <array>
#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct NewtonSchulzOptions {
  int steps = 5;                                                  // >= 1.
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};  // a > 0, b, c.
  double eps = 1e-7;  // The least norm that X is divided by.
};

// Memory of a call for any matrix of at most m <= n and m n elements, which it takes the front of.
struct NewtonSchulzWorkspace {
  View y, spare;   // [m n], fp32 or bf16, of one dtype: y is X, and both are overwritten.
  View square;     // [m m], of that dtype.
  View products;   // [ProductElements(m)], fp32.
  View sum;        // [1], fp32.
  View reduction;  // SumOfSquaresWorkspaceBytes().
};
// Elements of the blocks of rows of a symmetric product of m rows, up to the diagonal's block.
int64_t ProductElements(int64_t m);

// The result is scale * y.
struct ScaledMatrix {
  View y;  // [m, n]: one of the two buffers.
  float scale = 1;
};

// y, [m n], holds X. Sums of products are fp32 (ops/linear.h); A, B and Y are rounded to y's dtype.
// A zero X stays zero. Throws std::invalid_argument before anything is enqueued: shapes, dtypes.
ScaledMatrix NewtonSchulz(Stream& stream, const NewtonSchulzOptions& options, int64_t m, int64_t n,
                          const NewtonSchulzWorkspace& workspace);

// Parts of it, ops of their own.
//   x = x / max(sqrt(sum[0]), eps)                            x: fp32 or bf16; sum: [1], fp32
void DivideByNorm(Stream& stream, double eps, ConstView sum, View x);
//   out[i, j] = p_scale P[i, j] + a_scale a[i, j]             a and out: [m, m], fp32 or bf16
// P is symmetric, and `products` has its blocks of rows up to the diagonal's block, one behind the
// other, fp32. a: out itself, or empty: 0. The diagonal's blocks are read in their lower half
// alone.
void SymmetricSum(Stream& stream, float p_scale, ConstView products, float a_scale, ConstView a,
                  View out);
// Rows of a block: all blocks of m rows have as many, the last one may have fewer.
int64_t SymmetricBlock(int64_t m);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NEWTON_SCHULZ_H_
