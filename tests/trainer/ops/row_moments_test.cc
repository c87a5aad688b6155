#include "trainer/ops/row_moments.h"

#include <cmath>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/newton_schulz_oracle.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

class RowMomentsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(RowMomentsTest, kF32, kBF16);

// normuon_update() of normuon.py in github.com/zichongli5/NorMuon, behind its iteration: lines are
// rows of o, [lines, width].
Matrix Oracle(Matrix o, int64_t lines, int64_t width, double beta2, Matrix& v) {
  double before = 0, after = 0;
  for (const double x : o) before += x * x;
  for (int64_t i = 0; i < lines; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < width; ++j) squares += o[i * width + j] * o[i * width + j];
    v[i] = beta2 * v[i] + (1 - beta2) * squares / static_cast<double>(width);
    for (int64_t j = 0; j < width; ++j) o[i * width + j] /= std::sqrt(v[i]) + 1e-10;
  }
  for (const double x : o) after += x * x;
  for (double& x : o) x *= std::sqrt(before) / (std::sqrt(after) + 1e-10);
  return o;
}

TEST_P(RowMomentsTest, FollowsTheFormula) {
  constexpr double kBeta2 = 0.9, kScale = 3;
  for (const bool columns : {false, true}) {
    for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 7}, {5, 5}, {24, 52}, {70, 301}, {3, 700}}) {
      const int64_t lines = columns ? n : m, width = columns ? m : n;
      Random random(m * 100 + n, dtype());
      Matrix moments = RoundTo(kF32, random.Vector(lines, 0.5, 2));
      const View v = Input({lines}, moments, kF32), workspace = Output({lines}, kF32);
      const View y = Output({m, n}), gate = Input({1}, {1}, kF32);
      for (int step = 0; step < 2; ++step) {
        Matrix o = random.Vector(m * n);
        Set(y, o);
        Run([&](Stream& stream) {
          NormalizeRows(stream, {.beta2 = kBeta2, .columns = columns}, kScale, gate, y, v,
                        workspace);
        });
        for (double& x : o) x *= kScale;
        if (columns) o = Transposed(o, m, n);
        Matrix want = Oracle(o, lines, width, kBeta2, moments);
        if (columns) want = Transposed(want, n, m);
        // A result is no sum, but a product of two factors that are made of sums of squares.
        EXPECT_TRUE(AllNear(Get(y), want, Tolerance(dtype(), width))) << m << " x " << n;
        EXPECT_TRUE(AllNear(Get(v), moments, Tolerance(kF32, width))) << m << " x " << n;
      }
      Clear();
    }
  }
}

// Neither does a step that is skipped: whatever it has computed until then.
TEST_P(RowMomentsTest, ASkippedStepMovesNoMoment) {
  const int64_t m = 4, n = 9;
  Random random(1, dtype());
  const Matrix before = random.Vector(m, 0, 1);
  const View v = Input({m}, RoundTo(kF32, before), kF32), workspace = Output({m}, kF32);
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const View gate = Input({1}, {bad}, kF32), y = Output({m, n});
    Set(y, random.Vector(m * n));
    Run([&](Stream& stream) { NormalizeRows(stream, {}, 1, gate, y, v, workspace); });
    EXPECT_EQ(Get(v), RoundTo(kF32, before));
  }
}

TEST_P(RowMomentsTest, ZeroStaysZero) {
  const int64_t m = 4, n = 9;
  for (const bool columns : {false, true}) {
    const int64_t lines = columns ? n : m;
    const View y = Accumulated({m, n}, 0), v = Accumulated({lines}, 0, kF32);
    const View gate = Input({1}, {1}, kF32), workspace = Output({lines}, kF32);
    Run([&](Stream& stream) {
      NormalizeRows(stream, {.columns = columns}, 1, gate, y, v, workspace);
    });
    for (const View& zero : {y, v}) {
      for (const double value : Get(zero)) EXPECT_EQ(value, 0);
    }
  }
}

TEST_P(RowMomentsTest, BitsDoNotDependOnThreads) {
  const int64_t m = 90, n = 330;
  for (const bool columns : {false, true}) {
    const int64_t lines = columns ? n : m;
    Random random(5, dtype());
    const View y = Output({m, n}), v = Input({lines}, random.Vector(lines, 0, 1), kF32);
    Set(y, random.Vector(m * n));
    const View gate = Input({1}, {1}, kF32), workspace = Output({lines}, kF32);
    ExpectSameBits(
        [&](Stream& stream) {
          NormalizeRows(stream, {.columns = columns}, 1, gate, y, v, workspace);
        },
        {y, v});
    Clear();
  }
}

TEST_P(RowMomentsTest, RefusesWrongArguments) {
  const View y = Output({3, 4}), v = Output({3}, kF32), workspace = Output({3}, kF32);
  const View gate = Output({1}, kF32);
  const auto call = [=](const RowMomentsOptions& options, const View& moments) {
    return [=](Stream& s) { NormalizeRows(s, options, 1, gate, y, moments, workspace); };
  };
  ExpectRefused(call({.beta2 = 1}, v), "beta2");
  ExpectRefused(call({.eps = 0}, v), "eps");
  ExpectRefused(call({.columns = true}, v), "v is fp32 [3]");
  ExpectRefused(call({}, workspace), "overlap");
}

}  // namespace
}  // namespace fsdp
