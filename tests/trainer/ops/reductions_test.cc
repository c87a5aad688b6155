#include "trainer/ops/reductions.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

class ReductionsTest : public OpTest {
 protected:
  View Squares() { return Workspace(SumOfSquaresWorkspaceBytes(kernel_type())); }
};
FSDP_INSTANTIATE_OP_TEST(ReductionsTest, kF32, kBF16, kF16);  // Dtypes of gradients.

TEST_P(ReductionsTest, SumOfSquaresMatchesOracle) {
  for (const int64_t n : {1, 7, 255, 256, 257, 16384, 100003}) {
    const auto values = Random(n, dtype()).Vector(n);
    const View x = Input({n}, values), out = Accumulated({1}, 0.5, kF32), workspace = Squares();
    Run([&](Stream& stream) { SumOfSquares(stream, x, out, workspace); });
    // Chunks are summed in float32; all terms are positive, so the bound is relative to the sum.
    EXPECT_TRUE(AllNear(Get(out), {0.5 + Dot(values, values)}, Tolerance(kF32, 256))) << n;
    Clear();
  }
}

// Integers whose sum fits in 24 bits leave no room for rounding: not one element may be lost or
// counted twice.
TEST_P(ReductionsTest, SumOfSquaresIsExactOnIntegers) {
  for (const int64_t n : {0, 1, 300, 65536, 70001}) {
    const auto values = Random(n, dtype()).Integers(n, 16);
    const View x = Input({n}, values), out = Accumulated({1}, 3, kF32), workspace = Squares();
    Run([&](Stream& stream) {
      SumOfSquares(stream, x, out, workspace);
      SumOfSquares(stream, x, out, workspace);
    });
    EXPECT_EQ(Get(out)[0], 3 + 2 * Dot(values, values)) << n;
    Clear();
  }
}

// A large chunk, and many of 1, which fp32 would lose beside it: in a warp, in a group, and in the
// sum of all groups.
TEST_P(ReductionsTest, ChunksAreAddedUpInFloat64) {
  constexpr int64_t kChunks = 70;
  for (const int64_t large : {0, 1, 69}) {
    std::vector<double> values(256 * kChunks);
    for (int64_t c = 0; c < kChunks; ++c) values[256 * c] = c == large ? 4096 : 1;
    const View x = Input({256 * kChunks}, values), out = Accumulated({1}, -0x1p24, kF32);
    const View scale = Input({1}, {1}, kF32), found = Accumulated({1}, 0, kF32);
    const View workspace = Squares(), unscaled = Accumulated({1}, -0x1p24, kF32);
    Run([&](Stream& s) {
      SumOfSquares(s, x, out, workspace);
      UnscaledSumOfSquares(s, x, scale, unscaled, found, workspace);
    });
    EXPECT_EQ(Get(out)[0], kChunks - 1) << large;
    EXPECT_EQ(Get(unscaled)[0], kChunks - 1) << large;
    Clear();
  }
}

TEST_P(ReductionsTest, NaNAndOverflowShow) {
  std::vector<double> values(1000, 1.0);
  values[777] = std::nan("");
  const View x = Input({1000}, values), out = Accumulated({1}, 0, kF32), workspace = Squares();
  Run([&](Stream& stream) { SumOfSquares(stream, x, out, workspace); });
  EXPECT_TRUE(std::isnan(Get(out)[0]));
  const View large = Input({300}, std::vector<double>(300, 1e30)), sum = Accumulated({1}, 0, kF32);
  Run([&](Stream& stream) { SumOfSquares(stream, large, sum, workspace); });
  EXPECT_EQ(Get(sum)[0], HUGE_VAL);
}

TEST_P(ReductionsTest, ClipCoefficient) {
  struct Row {
    double sum_of_squares, mean_scale, max_norm, norm, coefficient;
  };
  const Row rows[] = {
      {16, 1, 1, 4, 1 / (4 + 1e-6)},            // Clipped.
      {16, 1, 8, 4, 1},                         // Within.
      {16, 1, 0, 4, 1},                         // Off.
      {16, 0.5, 1, 2, 0.5 * 1 / (2 + 1e-6)},    // The norm that counts is that of the mean.
      {16, 0.25, 1, 1, 0.25 * 1 / (1 + 1e-6)},  // On the border.
      {0, 1, 1, 0, 1},
      {16, 0.5, 0, 2, 0.5},
  };
  for (const Row& row : rows) {
    const View sum = Input({1}, {row.sum_of_squares}, kF32);
    const View scale = Input({1}, {row.mean_scale}, kF32);
    const View loss = Input({1}, {3}, kF32);
    const View norm = Output({1}, kF32), coefficient = Output({1}, kF32);
    const float max_norm = static_cast<float>(row.max_norm);
    Run([&](Stream& s) { ClipCoefficient(s, loss, sum, scale, {}, max_norm, norm, coefficient); });
    EXPECT_TRUE(AllNear(Get(norm), {row.norm}, Tolerance(kF32, 0)));
    EXPECT_TRUE(AllNear(Get(coefficient), {row.coefficient}, Tolerance(kF32, 0)));
    Run([&](Stream& s) { ClipCoefficient(s, loss, sum, scale, {}, max_norm, sum, coefficient); });
    EXPECT_EQ(Get(sum), Get(norm)) << "in place";
    EXPECT_TRUE(AllNear(Get(coefficient), {row.coefficient}, Tolerance(kF32, 0)));
  }
}

TEST_P(ReductionsTest, NormThatIsNotFiniteMakesNaN) {
  struct Row {
    double sum_of_squares, mean_scale;
  };
  const Row rows[] = {{std::nan(""), 1}, {HUGE_VAL, 1}, {1, HUGE_VAL}, {0, HUGE_VAL}};
  for (const Row& row : rows) {
    for (const float max_norm : {0.0f, 1.0f}) {
      const View sum = Input({1}, {row.sum_of_squares}, kF32);
      const View scale = Input({1}, {row.mean_scale}, kF32);
      const View loss = Input({1}, {3}, kF32);
      const View norm = Accumulated({1}, 0, kF32), coefficient = Accumulated({1}, 0, kF32);
      Run([&](Stream& s) {
        ClipCoefficient(s, loss, sum, scale, {}, max_norm, norm, coefficient);
      });
      EXPECT_FALSE(std::isfinite(Get(norm)[0]));
      EXPECT_TRUE(std::isnan(Get(coefficient)[0]));
    }
  }
}

TEST_P(ReductionsTest, LossThatIsNotFiniteMakesNaN) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const View loss = Input({1}, {bad}, kF32), one = Input({1}, {1}, kF32);
    const View norm = Output({1}, kF32), coefficient = Output({1}, kF32);
    Run([&](Stream& s) { ClipCoefficient(s, loss, one, one, {}, 0, norm, coefficient); });
    EXPECT_EQ(Get(norm)[0], 1);
    EXPECT_TRUE(std::isnan(Get(coefficient)[0]));
  }
}

TEST_P(ReductionsTest, UnscaledSquaresAndWhatIsNotFinite) {
  for (const int64_t n : {1, 255, 256, 257, 70000}) {
    std::vector<double> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<double>(i % 13 - 6) * 8;
    double want = 0;
    for (const double v : values) want += v / 16 * (v / 16);
    const View scale = Input({1}, {16}, kF32), x = Input({n}, values), workspace = Squares();
    const View sum = Accumulated({1}, 1, kF32), found = Accumulated({1}, 2, kF32);
    Run([&](Stream& s) { UnscaledSumOfSquares(s, x, scale, sum, found, workspace); });
    EXPECT_TRUE(AllNear(Get(sum), {1 + want}, Tolerance(kF32, 256)));
    EXPECT_EQ(Get(found)[0], 2) << "added to";
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      values[n / 2] = values[n - 1] = bad;
      const View worse = Input({n}, values), counted = Accumulated({1}, 0, kF32);
      Run([&](Stream& s) { UnscaledSumOfSquares(s, worse, scale, sum, counted, workspace); });
      EXPECT_EQ(Get(counted)[0], n == 1 ? 1 : 2);
    }
    Clear();
  }
  // Its squares overflow with the scale, but not without.
  const View x = Input({4}, {1e20, 1e20, 1e20, 1e20}, kF32), scale = Input({1}, {1e4}, kF32);
  const View workspace = Squares();
  const View sum = Accumulated({1}, 0, kF32), found = Accumulated({1}, 0, kF32);
  Run([&](Stream& s) { UnscaledSumOfSquares(s, x, scale, sum, found, workspace); });
  EXPECT_TRUE(AllNear(Get(sum), {4e32}, Tolerance(kF32, 4)));
  EXPECT_EQ(Get(found)[0], 0);
}

TEST_P(ReductionsTest, CoefficientTakesTheLossScaleAway) {
  const View loss = Input({1}, {3}, kF32), sum = Input({1}, {16}, kF32);
  const View mean = Input({1}, {0.5}, kF32), scale = Input({1}, {1024}, kF32);
  const View norm = Output({1}, kF32), coefficient = Output({1}, kF32);
  for (const float found : {0.0f, 1.0f}) {
    const LossScaling scaling{scale, Input({1}, {found}, kF32)};
    Run([&](Stream& s) { ClipCoefficient(s, loss, sum, mean, scaling, 1, norm, coefficient); });
    if (found > 0) {
      EXPECT_EQ(Get(norm)[0], HUGE_VAL);
      EXPECT_TRUE(std::isnan(Get(coefficient)[0]));
    } else {
      EXPECT_EQ(Get(norm)[0], 2);
      EXPECT_TRUE(AllNear(Get(coefficient), {0.5 / (2 + 1e-6) / 1024}, Tolerance(kF32, 0)));
    }
  }
}

TEST_P(ReductionsTest, RefusesWrongArguments) {
  const View x = Output({6}), one = Output({1}, kF32), scale = Output({1}, kF32);
  const View norm = Output({1}, kF32), workspace = Squares();
  ExpectRefused([&](Stream& s) { SumOfSquares(s, x, Output({2}, kF32), workspace); },
                "[sum_of_squares] out is");
  const View floats = Output({6}, kF32);
  ExpectRefused([&](Stream& s) { SumOfSquares(s, floats, floats.Slice(2, 1), workspace); },
                "overlap");
  ExpectRefused([&](Stream& s) { UnscaledSumOfSquares(s, x, scale, one, one, workspace); },
                "overlap");
  ExpectRefused(
      [&](Stream& s) { ClipCoefficient(s, one, one, scale, {}, -1, norm, Output({1}, kF32)); },
      "[clip_coefficient] max_norm");
  ExpectRefused([&](Stream& s) { ClipCoefficient(s, one, one, scale, {}, 1, norm, norm); },
                "overlap");
  ExpectRefused([&](Stream& s) { ClipCoefficient(s, one, x, scale, {}, 1, norm, one); },
                "sum_of_squares");
  ExpectDTypesRefused("sum_of_squares", [&](Stream& s) {
    SumOfSquares(s, Output({6}), Output({1}, kF32), workspace);
  });
  ExpectDTypesRefused("unscaled_sum_of_squares", [&](Stream& s) {
    const auto one = [&] { return Output({1}, kF32); };
    UnscaledSumOfSquares(s, Output({6}), one(), one(), one(), workspace);
  });
  ExpectDTypesRefused("clip_coefficient", [&](Stream& s) {
    const auto one = [&] { return Output({1}, kF32); };
    ClipCoefficient(s, one(), one(), one(), {}, 1, one(), one());
  });
}

TEST_P(ReductionsTest, BitsDoNotDependOnThreads) {
  const View x = Input({123457}, Random(5, dtype()).Vector(123457));
  const View out = Accumulated({1}, 0, kF32), workspace = Squares();
  ExpectSameBits([&](Stream& stream) { SumOfSquares(stream, x, out, workspace); }, {out});
}

}  // namespace
}  // namespace fsdp
