#include "trainer/ops/swiglu.h"

#include <cmath>
#include <limits>
#include <utility>

#include "tests/testing/harness.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Case {
  int64_t rows, inner;
};
constexpr Case kCases[] = {{0, 4}, {1, 1}, {3, 7}, {5, 64}, {2, 201}};

Values Oracle(const Case& c, const Values& x) {
  Values y;
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.inner; ++j) {
      const double g = x[i * 2 * c.inner + j], u = x[i * 2 * c.inner + c.inner + j];
      y.push_back(g / (1 + std::exp(-g)) * u);
    }
  }
  return y;
}

class SwigluTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(SwigluTest, kF32, kBF16, kF16);

// Gates up to 8: results are up to 8, and Tolerance counts from 1.
TEST_P(SwigluTest, ForwardMatchesOracle) {
  for (const Case& c : kCases) {
    Random random(c.inner, dtype());
    Values values = random.Vector(c.rows * 2 * c.inner, -8, 8);
    const View x = Input({c.rows, 2 * c.inner}, values), y = Output({c.rows, c.inner});
    Run([&](Stream& stream) { SwigluForward(stream, x, y); });
    EXPECT_TRUE(AllNear(Get(y), Oracle(c, values), Tolerance(dtype(), 1)));
    Clear();
  }
}

TEST_P(SwigluTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    Random random(c.inner + 1, dtype());
    const Values values = random.Vector(c.rows * 2 * c.inner, -4, 4);
    const Values dout = random.Vector(c.rows * c.inner);
    Values want(values.size());
    for (int64_t i = 0; i < c.rows; ++i) {
      const auto begin = values.begin() + i * 2 * c.inner;
      const Values dy(dout.begin() + i * c.inner, dout.begin() + (i + 1) * c.inner);
      const auto gradient = NumericGradient(
          [&](const Values& v) {
            return Dot(dy, Oracle({1, c.inner}, v));
          },
          Values(begin, begin + 2 * c.inner));
      std::copy(gradient.begin(), gradient.end(), want.begin() + i * 2 * c.inner);
    }
    const Shape shape{c.rows, 2 * c.inner};
    const View x = Input(shape, values), dy = Input({c.rows, c.inner}, dout), dx = Output(shape);
    Run([&](Stream& stream) { SwigluBackward(stream, x, dy, dx); });
    // Operands of up to 4: products of three of them.
    EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), 1, 16)));
    Run([&](Stream& stream) { SwigluBackward(stream, x, dy, x); });
    EXPECT_EQ(Get(x), Get(dx)) << "in place";
    Clear();
  }
}

// 1 - s cancels for large gates, exp(-g) overflows for small ones.
TEST_P(SwigluTest, ExtremesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), large = Largest(dtype());
  const double low = dtype() == DType::kFloat16 ? -9 : -20;  // What is left of it is normal.
  const Values gates = {-large, -200, low, 20, 200, large, nan};
  const int64_t n = static_cast<int64_t>(gates.size());
  Values values = gates;
  values.resize(2 * n, 1.0);
  const View x = Input({1, 2 * n}, values), y = Output({1, n}), dx = Output({1, 2 * n});
  const View dy = Input({1, n}, Values(n, 1));
  Run([&](Stream& stream) {
    SwigluForward(stream, x, y);
    SwigluBackward(stream, x, dy, dx);
  });
  const Values out = Get(y), gradient = Get(dx);
  const double s = 1 / (1 + std::exp(-low)), tail = low * s, slope = s * (1 + low * (1 - s));
  const double tolerance = Tolerance(dtype(), 1, 7);  // exp makes low's rounding a relative error.
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  EXPECT_NEAR(out[2] / tail, 1, tolerance);
  EXPECT_EQ(out[3], RoundTo(dtype(), 20 / (1 + std::exp(-20.0))));
  EXPECT_EQ(out[5], large);
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(gradient[0], 0);
  EXPECT_NEAR(gradient[2] / slope, 1, tolerance);
  EXPECT_EQ(gradient[4], 1);
  EXPECT_EQ(gradient[5], 1);
  EXPECT_TRUE(std::isnan(gradient[6]));
  // What vanishes does so before it meets a gate beyond which there is nothing.
  Set(x, {-large, 0, 0, 0, 0, 0, 0, 4, 1, 1, 1, 1, 1, 1});
  Run([&](Stream& stream) {
    SwigluForward(stream, x, y);
    SwigluBackward(stream, x, dy, dx);
  });
  EXPECT_EQ(Get(y)[0], 0);
  EXPECT_EQ(Get(dx)[0], 0);
}

TEST_P(SwigluTest, IsThatOfFp32RoundedOnce) {
  const int64_t rows = 3, inner = 700;
  Random random(5, dtype());
  const Values values = random.Vector(rows * 2 * inner, -8, 8), dout = random.Vector(rows * inner);
  const auto run = [&](DType dtype) {
    const View x = Input({rows, 2 * inner}, values, dtype), dy = Input({rows, inner}, dout, dtype);
    const View y = Output({rows, inner}, dtype), dx = Output({rows, 2 * inner}, dtype);
    Run([&](Stream& stream) {
      SwigluForward(stream, x, y);
      SwigluBackward(stream, x, dy, dx);
    });
    return std::pair(Get(y), Get(dx));
  };
  const auto got = run(dtype()), want = run(kF32);
  EXPECT_EQ(got.first, RoundTo(dtype(), want.first));
  EXPECT_EQ(got.second, RoundTo(dtype(), want.second));
}

TEST_P(SwigluTest, RefusesWrongArguments) {
  const View x = Output({2, 6}), y = Output({2, 3}), dx = Output({2, 6});
  ExpectRefused([&](Stream& s) { SwigluForward(s, y, y); }, "[swiglu_forward] x is $T [2, 3]");
  ExpectRefused([&](Stream& s) { SwigluForward(s, x, Output({6})); }, "y is $T [6]");
  ExpectRefused(
      [&](Stream& s) {
        SwigluForward(s, x, x.Slice(0, 6).Reshape({2, 3}));
      },
      "y and x overlap");
  ExpectRefused([&](Stream& s) { SwigluBackward(s, x, y, y); }, "[swiglu_backward] dx is");
  ExpectRefused(
      [&](Stream& s) {
        SwigluBackward(s, x, dx.Slice(0, 6).Reshape({2, 3}), dx);
      },
      "dx and dy overlap");
  const DType half = OtherHalf();
  const std::string is = " is " + std::string(Name(half));
  ExpectRefused([&](Stream& s) { SwigluForward(s, x, Output({2, 3}, half)); }, "y" + is);
  ExpectRefused([&](Stream& s) { SwigluBackward(s, x, Output({2, 3}, half), dx); }, "dy" + is);
  ExpectRefused([&](Stream& s) { SwigluBackward(s, x, y, Output({2, 6}, half)); }, "dx" + is);
  ExpectDTypesRefused("swiglu_forward", [&](Stream& s) {
    SwigluForward(s, Output({2, 6}), Output({2, 3}));
  });
  ExpectDTypesRefused("swiglu_backward", [&](Stream& s) {
    SwigluBackward(s, Output({2, 6}), Output({2, 3}), Output({2, 6}));
  });
}

TEST_P(SwigluTest, BitsDoNotDependOnThreads) {
  const View x = Input({37, 106}, Random(3, dtype()).Vector(37 * 106, -4, 4));
  const View y = Output({37, 53}), dx = Output(x.shape);
  ExpectSameBits(
      [&](Stream& stream) {
        SwigluForward(stream, x, y);
        SwigluBackward(stream, x, y, dx);
      },
      {y, dx});
}

}  // namespace
}  // namespace fsdp
