#include "trainer/ops/gelu.h"

#include <cmath>
#include <limits>
#include <utility>

#include "tests/testing/harness.h"
#include "tests/trainer/ops/gelu_oracle.h"

namespace fsdp {
namespace {

constexpr int64_t kSizes[] = {0, 1, 7, 64, 1000};

class GeluTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(GeluTest, kF32, kBF16, kF16);

TEST_P(GeluTest, ForwardMatchesOracle) {
  for (const int64_t n : kSizes) {
    const auto values = Random(n, dtype()).Vector(n, -8, 8);
    std::vector<double> want;
    for (const double x : values) want.push_back(GeluOracle(x));
    const View x = Input({n}, values), y = Output({n});
    Run([&](Stream& stream) { GeluForward(stream, x, y); });
    EXPECT_TRUE(AllNear(Get(y), want, Tolerance(dtype(), 1)));
    Run([&](Stream& stream) { GeluForward(stream, x, x); });
    EXPECT_EQ(Get(x), Get(y)) << "in place";
    Clear();
  }
}

// 1 + tanh cancels for negative x: at -5, 1 - 2e-7 would be left of it.
TEST_P(GeluTest, KeepsTheDigitsOfItsTail) {
  std::vector<double> values, want, ratio;
  for (double x = -6; x <= -1; x += 0.125) {
    values.push_back(x);
    want.push_back(GeluOracle(x));
    if (std::abs(want.back()) < SmallestNormal(dtype())) values.pop_back(), want.pop_back();
  }
  const int64_t n = values.size();
  const View x = Input({n}, values), y = Output({n});
  Run([&](Stream& stream) { GeluForward(stream, x, y); });
  const auto got = Get(y);
  for (int64_t i = 0; i < n; ++i) ratio.push_back(got[i] / want[i]);
  // u is up to 13 here and exp(2u) turns its absolute error into a relative one.
  EXPECT_TRUE(AllNear(ratio, std::vector<double>(n, 1), Tolerance(dtype(), 1, 2 * 13)));
}

TEST_P(GeluTest, ExtremesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), large = Largest(dtype());
  const View x = Input({5}, {-large, -100, 100, large, nan}), dy = Input({5}, {1, 1, 1, 1, 1});
  const View y = Output({5}), dx = Output({5});
  Run([&](Stream& stream) {
    GeluForward(stream, x, y);
    GeluBackward(stream, x, dy, dx);
  });
  const auto out = Get(y), gradient = Get(dx);
  using Values = std::vector<double>;
  EXPECT_EQ(Values(out.begin(), out.begin() + 4), Values({0, 0, 100, large}));
  EXPECT_EQ(Values(gradient.begin(), gradient.begin() + 4), Values({0, 0, 1, 1}));
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_TRUE(std::isnan(gradient[4]));
}

TEST_P(GeluTest, GradientMatchesFiniteDifferences) {
  for (const int64_t n : kSizes) {
    Random random(n, dtype());
    const auto values = random.Vector(n, -8, 8), dout = random.Vector(n);
    std::vector<double> want;
    for (int64_t i = 0; i < n; ++i) {
      want.push_back((GeluOracle(values[i] + 1e-5) - GeluOracle(values[i] - 1e-5)) / 2e-5 *
                     dout[i]);
    }
    const View x = Input({n}, values), dy = Input({n}, dout), dx = Output({n});
    Run([&](Stream& stream) { GeluBackward(stream, x, dy, dx); });
    // x is up to 8: its products with the slope, not of order one, have 8 times the error.
    EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), 1, 8)));
    Run([&](Stream& stream) { GeluBackward(stream, x, dy, dy); });
    EXPECT_EQ(Get(dy), Get(dx)) << "in place";
    Clear();
  }
}

TEST_P(GeluTest, IsThatOfFp32RoundedOnce) {
  Random random(5, dtype());
  const auto values = random.Vector(1500, -8, 8), dout = random.Vector(1500);
  const auto run = [&](DType dtype) {
    const View x = Input({1500}, values, dtype), dy = Input({1500}, dout, dtype);
    const View y = Output({1500}, dtype), dx = Output({1500}, dtype);
    Run([&](Stream& stream) {
      GeluForward(stream, x, y);
      GeluBackward(stream, x, dy, dx);
    });
    return std::pair(Get(y), Get(dx));
  };
  const auto got = run(dtype()), want = run(kF32);
  EXPECT_EQ(got.first, RoundTo(dtype(), want.first));
  EXPECT_EQ(got.second, RoundTo(dtype(), want.second));
}

TEST_P(GeluTest, TensorsBeginAnywhere) {
  constexpr int64_t kSize = 64;
  Random random(7, dtype());
  const View x = Input({kSize}, random.Vector(kSize, -8, 8)),
             dy = Input({kSize}, random.Vector(kSize));
  const View y = Output({kSize}), dx = Output({kSize});
  Run([&](Stream& stream) {
    GeluForward(stream, x, y);
    GeluBackward(stream, x, dy, dx);
  });
  const auto want = Get(y), want_dx = Get(dx);
  for (const int64_t from : {0, 1, 8}) {
    for (const int64_t to : {0, 2, 16}) {
      const int64_t n = 21;
      const View part = Output({kSize}), part_dx = Output({kSize});
      Run([&](Stream& stream) {
        GeluForward(stream, x.Slice(from, n), part.Slice(to, n));
        GeluBackward(stream, x.Slice(from, n), dy.Slice(from, n), part_dx.Slice(to, n));
      });
      const auto got = Get(part), got_dx = Get(part_dx);
      for (int64_t i = 0; i < kSize; ++i) {
        if (i >= to && i < to + n) {
          EXPECT_EQ(got[i], want[i - to + from]);
          EXPECT_EQ(got_dx[i], want_dx[i - to + from]);
        } else {
          EXPECT_TRUE(std::isnan(got[i]) && std::isnan(got_dx[i])) << i << " is not its own";
        }
      }
    }
  }
}

TEST_P(GeluTest, RefusesWrongArguments) {
  const View x = Output({6}), y = Output({6});
  ExpectRefused([&](Stream& s) { GeluForward(s, x, Output({5})); }, "[gelu_forward] y is $T [5]");
  ExpectRefused([&](Stream& s) { GeluForward(s, x.Slice(0, 4), x.Slice(1, 4)); }, "overlap");
  ExpectRefused([&](Stream& s) { GeluBackward(s, x, Output({5}), y); }, "[gelu_backward] dy");
  ExpectRefused([&](Stream& s) { GeluBackward(s, x, y, Output({7})); }, "dx is $T [7]");
  const View half = Output({6}, OtherHalf());
  const std::string is = " is " + std::string(Name(half.dtype)) + " [6], want $T";
  ExpectRefused([&](Stream& s) { GeluForward(s, x, half); }, "y" + is);
  ExpectRefused([&](Stream& s) { GeluBackward(s, x, half, y); }, "dy" + is);
  ExpectRefused([&](Stream& s) { GeluBackward(s, x, y, half); }, "dx" + is);
  ExpectDTypesRefused("gelu_forward", [&](Stream& s) { GeluForward(s, Output({6}), Output({6})); });
  ExpectDTypesRefused("gelu_backward",
                      [&](Stream& s) { GeluBackward(s, Output({6}), Output({6}), Output({6})); });
}

TEST_P(GeluTest, BitsDoNotDependOnThreads) {
  const View x = Input({5003}, Random(3, dtype()).Vector(5003, -4, 4));
  const View y = Output(x.shape), dx = Output(x.shape);
  ExpectSameBits(
      [&](Stream& stream) {
        GeluForward(stream, x, y);
        GeluBackward(stream, x, y, dx);
      },
      {y, dx});
}

}  // namespace
}  // namespace fsdp
