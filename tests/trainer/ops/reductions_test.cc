#include "trainer/ops/reductions.h"

#include <cmath>

#include "tests/testing/harness.h"

namespace fsdp {
namespace {

class ReductionsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ReductionsTest, kF32);  // Of gradients. Their squares' sum is fp32.

TEST_P(ReductionsTest, SumOfSquaresMatchesOracle) {
  for (const int64_t n : {1, 7, 255, 256, 257, 16384, 100003}) {
    const auto values = Random(n, dtype()).Vector(n);
    const View x = Input({n}, values), out = Accumulated({1}, 0.5, kF32);
    Run([&](Stream& stream) { SumOfSquares(stream, x, out); });
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
    const View x = Input({n}, values), out = Accumulated({1}, 3, kF32);
    Run([&](Stream& stream) {
      SumOfSquares(stream, x, out);
      SumOfSquares(stream, x, out);
    });
    EXPECT_EQ(Get(out)[0], 3 + 2 * Dot(values, values)) << n;
    Clear();
  }
}

TEST_P(ReductionsTest, NaNAndOverflowShow) {
  std::vector<double> values(1000, 1.0);
  values[777] = std::nan("");
  const View x = Input({1000}, values), out = Accumulated({1}, 0, kF32);
  Run([&](Stream& stream) { SumOfSquares(stream, x, out); });
  EXPECT_TRUE(std::isnan(Get(out)[0]));
  const View large = Input({300}, std::vector<double>(300, 1e30)), sum = Accumulated({1}, 0, kF32);
  Run([&](Stream& stream) { SumOfSquares(stream, large, sum); });
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
    const View norm = Output({1}, kF32), coefficient = Output({1}, kF32);
    const float max_norm = static_cast<float>(row.max_norm);
    Run([&](Stream& s) { ClipCoefficient(s, sum, scale, max_norm, norm, coefficient); });
    EXPECT_TRUE(AllNear(Get(norm), {row.norm}, Tolerance(kF32, 0)));
    EXPECT_TRUE(AllNear(Get(coefficient), {row.coefficient}, Tolerance(kF32, 0)));
    Run([&](Stream& s) { ClipCoefficient(s, sum, scale, max_norm, sum, coefficient); });
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
      const View norm = Accumulated({1}, 0, kF32), coefficient = Accumulated({1}, 0, kF32);
      Run([&](Stream& s) { ClipCoefficient(s, sum, scale, max_norm, norm, coefficient); });
      EXPECT_FALSE(std::isfinite(Get(norm)[0]));
      EXPECT_TRUE(std::isnan(Get(coefficient)[0]));
    }
  }
}

TEST_P(ReductionsTest, RefusesWrongArguments) {
  const View x = Output({6}), one = Output({1}, kF32), scale = Output({1}, kF32);
  const View norm = Output({1}, kF32);
  ExpectRefused([&](Stream& s) { SumOfSquares(s, x, Output({2}, kF32)); },
                "[sum_of_squares] out is");
  ExpectRefused([&](Stream& s) { SumOfSquares(s, x, x.Slice(2, 1)); }, "overlap");
  ExpectRefused([&](Stream& s) { ClipCoefficient(s, one, scale, -1, norm, Output({1}, kF32)); },
                "[clip_coefficient] max_norm");
  ExpectRefused([&](Stream& s) { ClipCoefficient(s, one, scale, 1, norm, norm); }, "overlap");
  ExpectRefused([&](Stream& s) { ClipCoefficient(s, x, scale, 1, norm, one); }, "sum_of_squares");
  ExpectDTypesRefused("sum_of_squares",
                      [&](Stream& s) { SumOfSquares(s, Output({6}), Output({1}, kF32)); });
  ExpectDTypesRefused("clip_coefficient", [&](Stream& s) {
    const auto one = [&] { return Output({1}, kF32); };
    ClipCoefficient(s, one(), one(), 1, one(), one());
  });
}

TEST_P(ReductionsTest, BitsDoNotDependOnThreads) {
  const View x = Input({123457}, Random(5, dtype()).Vector(123457));
  const View out = Accumulated({1}, 0, kF32);
  ExpectSameBits([&](Stream& stream) { SumOfSquares(stream, x, out); }, {out});
}

}  // namespace
}  // namespace fsdp
