// Newton and Schulz's iteration against the formula in float64, and copies of pieces of matrices.
#include "trainer/ops/newton_schulz.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/newton_schulz_oracle.h"
#include "tests/testing/numeric.h"
#include "trainer/ops/matrix_pieces.h"
#include "trainer/ops/reductions.h"

namespace fsdp {
namespace {

class NewtonSchulzTest : public OpTest {
 protected:
  NewtonSchulzWorkspace WorkspaceFor(const View& y, int64_t m) {
    const Shape flat{y.NumElements()};
    return {.y = y,
            .spare = Output(flat),
            .square = Output({m * m}),
            .products = Output({ProductElements(m)}, kF32),
            .sum = Output({1}, kF32),
            .reduction = Workspace(SumOfSquaresWorkspaceBytes(kernel_type()))};
  }
  Matrix Compute(const Matrix& x, int64_t m, int64_t n, const NewtonSchulzOptions& options) {
    const NewtonSchulzWorkspace workspace = WorkspaceFor(Input({m * n}, x), m);
    ScaledMatrix result;
    Run([&](Stream& stream) { result = NewtonSchulz(stream, options, m, n, workspace); });
    Matrix values = Get(result.y);
    for (double& value : values) value *= result.scale;
    return values;
  }
};
FSDP_INSTANTIATE_OP_TEST(NewtonSchulzTest, kF32, kBF16);

// The iteration sends singular values towards 1, by factors of up to a = 3.4 a step at first: an
// error may grow as much.
TEST_P(NewtonSchulzTest, FollowsTheFormula) {
  const bool wide = kernel_type() == DeviceType::kCpu;
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 7}, {5, 5}, {24, 52}, {70, 90}, {wide ? 200 : 66, wide ? 300 : 67}}) {
    Random random(m * 100 + n, dtype());
    const Matrix x = random.Vector(m * n);
    const NewtonSchulzOptions options{.steps = wide ? 5 : 2};
    const Matrix want = NewtonSchulzOracle(x, m, n, options.steps);
    const double growth = std::pow(3.4445, options.steps);
    const double tolerance =
        dtype() == kF32 ? growth * Tolerance(kF32, m) / 4 : options.steps * 12 * Epsilon(kBF16);
    EXPECT_TRUE(AllNear(Compute(x, m, n, options), want, tolerance)) << m << " x " << n;
    Clear();
  }
}

TEST_P(NewtonSchulzTest, SingularValuesComeNearOne) {
  const int64_t m = 12, n = 40;
  Random random(3, dtype());
  const Matrix x = Compute(random.Vector(m * n), m, n, {});
  const Matrix gram = MatrixProduct(x, Transposed(x, m, n), m, n, m);
  double trace = 0;
  for (int64_t i = 0; i < m; ++i) trace += gram[i * m + i];
  EXPECT_NEAR(trace / m, 0.8, 0.3);  // The mean of squares: the coefficients leave 0.7 to 1.2.
}

TEST_P(NewtonSchulzTest, ZeroStaysZero) {
  for (const double value : Compute(Matrix(6 * 9), 6, 9, {})) EXPECT_EQ(value, 0);
}

TEST_P(NewtonSchulzTest, SymmetricProductsCostAsMuchAsTheyShould) {
  EXPECT_EQ(SymmetricBlock(768), 128);
  EXPECT_LE(ProductElements(768), 0.6 * 768 * 768);
  const int64_t m = 150, n = 160;
  Random random(4, dtype());
  Compute(random.Vector(m * n), m, n, {.steps = 1});
  double products = 0;
  for (const KernelCost& kernel : costs()) {
    if (kernel.kind == KernelKind::kProduct) products += kernel.cost.flops;
  }
  const double square = static_cast<double>(ProductElements(m));
  EXPECT_NEAR(products, 2 * square * n + 2 * square * m + 2.0 * m * m * n, m * n);
}

TEST_P(NewtonSchulzTest, BitsDoNotDependOnThreads) {
  const int64_t m = 30, n = 44;
  Random random(5, dtype());
  const Matrix x = random.Vector(m * n);
  const View y = Output({m * n});
  const NewtonSchulzWorkspace workspace = WorkspaceFor(y, m);
  Set(y, x);
  Set(workspace.spare, x);
  ExpectSameBits([&](Stream& stream) { NewtonSchulz(stream, {.steps = 1}, m, n, workspace); },
                 {workspace.spare});
}

TEST_P(NewtonSchulzTest, RefusesWrongArguments) {
  const NewtonSchulzWorkspace good = WorkspaceFor(Output({12}), 3);
  const auto call = [=](const NewtonSchulzOptions& options, int64_t m, int64_t n) {
    return [=](Stream& stream) { NewtonSchulz(stream, options, m, n, good); };
  };
  ExpectRefused(call({}, 4, 3), "1 <= m <= n");
  ExpectRefused(call({.steps = 0}, 3, 4), "steps");
  ExpectRefused(call({.coefficients = {0, 1, 1}}, 3, 4), "coefficients");
  ExpectRefused(call({}, 3, 5), "y is too small");
  ExpectRefused([&](Stream& s) { DivideByNorm(s, 0, good.sum, good.y); }, "eps");
  ExpectRefused(
      [&](Stream& s) {
        SymmetricSum(s, 1, good.sum, 0, View(), good.square.Reshape({3, 3}));
      },
      "products is fp32 [1]");
}

// Rows of 9, of which a matrix has columns 3 to 6: what a shard has of c_attn. All else stays.
TEST_P(NewtonSchulzTest, PiecesOfAMatrixMoveWhereTheyBelong) {
  const int64_t rows = 5, width = 3, pitch = 9;
  const SpreadPiece piece{
      .first = 4, .count = 8, .width = width, .packed = 2, .begin = -8, .row_pitch = pitch};
  Matrix source(40);
  std::iota(source.begin(), source.end(), 1);
  const View spread = Input({40}, source), packed = Accumulated({11}, -1);
  Run([&](Stream& stream) { PackPieces(stream, {piece}, spread, packed); });
  Matrix want(11, -1);
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t element = 4 + i;
    want[2 + i] = source[-8 + element / width * pitch + element % width];
  }
  EXPECT_EQ(Get(packed), want);

  const View wide = Input({40}, source, kF32), narrowed = Accumulated({11}, -1);
  Run([&](Stream& stream) { PackPieces(stream, {piece}, wide, narrowed); });
  EXPECT_EQ(Get(narrowed), want);

  const View back = Accumulated({40}, 0, kF32);
  Run([&](Stream& stream) { SpreadPieces(stream, {piece}, 2, packed, back); });
  Matrix there(40);
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t element = 4 + i;
    there[-8 + element / width * pitch + element % width] = 2 * want[2 + i];
  }
  EXPECT_EQ(Get(back), there);

  // Transposed, in two pieces that do not end with a row.
  const View whole = Input({rows * width}, Matrix(source.begin(), source.begin() + rows * width));
  const View turned = Output({rows * width});
  const auto part = [&](int64_t first, int64_t count) {
    return SpreadPiece{.first = first,
                       .count = count,
                       .width = width,
                       .packed = first,
                       .row_pitch = 1,
                       .column_pitch = rows};
  };
  Run([&](Stream& stream) {
    SpreadPieces(stream, {part(0, 7), part(7, rows * width - 7)}, 1, whole, turned);
  });
  EXPECT_EQ(Get(turned), Transposed(Get(whole), rows, width));

  const auto refused = [&](SpreadPiece wrong, const char* message) {
    ExpectRefused([&](Stream& s) { PackPieces(s, {wrong}, spread, packed); }, message);
  };
  refused({.first = 0, .count = 8, .width = 3, .begin = -1}, "leaves spread");
  refused({.first = 0, .count = 8, .width = 3, .packed = 4, .row_pitch = 3}, "leaves packed");
  refused({.first = 0, .count = 0}, "a piece is empty");
}

}  // namespace
}  // namespace fsdp
