#include "trainer/ops/swiglu.h"

#include <cmath>
#include <limits>

#include "tests/testing/harness.h"
#include "tests/testing/same_bits.h"

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
FSDP_INSTANTIATE_OP_TEST(SwigluTest);

// Gates up to 8: results are up to 8, and Tolerance counts from 1.
TEST_P(SwigluTest, ForwardMatchesOracle) {
  for (const Case& c : kCases) {
    Random random(c.inner);
    Values values = random.Vector(c.rows * 2 * c.inner, -8, 8);
    const View x = Input({c.rows, 2 * c.inner}, values), y = Output({c.rows, c.inner});
    Run([&](Stream& stream) { SwigluForward(stream, x, y); });
    EXPECT_TRUE(AllNear(Get(y), Oracle(c, values), Tolerance(DType::kFloat32, 1)));
    Clear();
  }
}

TEST_P(SwigluTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    Random random(c.inner + 1);
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
    EXPECT_TRUE(AllNear(Get(dx), want, 16 * Tolerance(DType::kFloat32, 1)));
    Run([&](Stream& stream) { SwigluBackward(stream, x, dy, x); });
    EXPECT_EQ(Get(x), Get(dx)) << "in place";
    Clear();
  }
}

// 1 - s cancels for large gates, exp(-g) overflows for small ones.
TEST_P(SwigluTest, ExtremesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Values gates = {-1e30, -200, -20, 20, 200, 1e30, nan};
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
  const double tail = 20 * std::exp(-20.0), slope = std::exp(-20.0) * (1 - 20);
  const double u = Epsilon(DType::kFloat32);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  EXPECT_NEAR(out[2] / -tail, 1, 64 * u);  // exp turns 20's rounding into a relative error.
  EXPECT_EQ(out[3], RoundTo(DType::kFloat32, 20 / (1 + std::exp(-20.0))));
  EXPECT_EQ(out[5], RoundTo(DType::kFloat32, 1e30));
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(gradient[0], 0);
  EXPECT_NEAR(gradient[2] / slope, 1, 64 * u);
  EXPECT_EQ(gradient[4], 1);
  EXPECT_EQ(gradient[5], 1);
  EXPECT_TRUE(std::isnan(gradient[6]));
}

TEST_P(SwigluTest, RefusesWrongArguments) {
  const View x = Output({2, 6}), y = Output({2, 3}), dx = Output({2, 6});
  ExpectRefused([&](Stream& s) { SwigluForward(s, y, y); }, "[swiglu_forward] x is fp32 [2, 3]");
  ExpectRefused([&](Stream& s) { SwigluForward(s, x, Output({6})); }, "y is fp32 [6]");
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
}

TEST(Swiglu, BitsDoNotDependOnThreads) {
  auto x = Floats(Random(3).Vector(37 * 2 * 53, -4, 4));
  ExpectSameBits([&](Stream& stream) {
    std::vector<float> y(x.size() / 2), dx(x.size());
    SwigluForward(stream, ViewOf(x, {37, 106}), ViewOf(y, {37, 53}));
    SwigluBackward(stream, ViewOf(x, {37, 106}), ViewOf(y, {37, 53}), ViewOf(dx, {37, 106}));
    stream.Synchronize();
    y.insert(y.end(), dx.begin(), dx.end());
    return y;
  });
}

}  // namespace
}  // namespace fsdp
