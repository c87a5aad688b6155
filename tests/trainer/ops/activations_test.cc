#include "trainer/ops/activations.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/gelu_oracle.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

constexpr int64_t kSizes[] = {0, 1, 7, 64, 1000};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Itself(double x) { return x; }

double Relu(double x) { return x <= 0 ? 0 : x; }
// Where y is 0 the slope is 0, at x = 0, too.
double AtOfRelu(double y) { return y <= 0 ? -1 : 1; }

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double AtOfSigmoid(double y) { return std::log(y / (1 - y)); }

double GeluExact(double x) { return x * std::erfc(-x * M_SQRT1_2) / 2; }

// A row of the table of activations, in float64.
struct Function {
  Activation f;
  std::string name;           // "gelu": its operations are "gelu_forward" and "gelu_backward".
  std::string saved;          // The name of what backward reads.
  double (*value)(double x);  // The formula.
  double (*at)(
      double saved);  // An x at which the formula's slope is what backward multiplies with.
  double tail;        // From here to -1 results keep their digits, where they are normal.
  double tail_scale;  // How far the error of an exponent makes one of the result.
  double nan_slope;   // Where `saved` is NaN.

  // The values that backward reads, made of x.
  double Saved(DType dtype, double x) const { return saved == "x" ? x : RoundTo(dtype, value(x)); }
  double Slope(double saved_value) const {
    const double x = at(saved_value);
    return (value(x + 1e-5) - value(x - 1e-5)) / 2e-5;
  }
  Values Saved(DType dtype, Values x) const {
    for (double& v : x) v = Saved(dtype, v);
    return x;
  }
};

const Function kFunctions[] = {
    // u is up to 13 at -6, and exp(2u) turns its absolute error into a relative one.
    {Activation::kGelu, "gelu", "x", GeluOracle, Itself, -6, 2 * 13, NAN},
    {Activation::kRelu, "relu", "y", Relu, AtOfRelu, 0, 1, 1},
    {Activation::kSigmoid, "sigmoid", "y", Sigmoid, AtOfSigmoid, -87, 1, NAN},
    {Activation::kGeluExact, "gelu_exact", "x", GeluExact, Itself, -12.875, 1, NAN},
};

class ActivationsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ActivationsTest, kF32, kBF16, kF16);

TEST_P(ActivationsTest, EveryRowIsTested) {
  EXPECT_EQ(std::size(kFunctions), kActivations);
  for (int i = 0; i < kActivations; ++i) EXPECT_EQ(static_cast<int>(kFunctions[i].f), i);
}

TEST_P(ActivationsTest, ForwardMatchesOracle) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    for (const int64_t n : kSizes) {
      const Values values = Random(n, dtype()).Vector(n, -8, 8);
      Values want;
      for (const double x : values) want.push_back(function.value(x));
      const View x = Input({n}, values), y = Output({n});
      Run([&](Stream& stream) { ActivationForward(stream, function.f, x, y); });
      EXPECT_TRUE(AllNear(Get(y), want, Tolerance(dtype(), 1)));
      Run([&](Stream& stream) { ActivationForward(stream, function.f, x, x); });
      EXPECT_EQ(Get(x), Get(y)) << "in place";
      Clear();
    }
  }
}

// 1 + tanh cancels for negative x: at -5, 1 - 2e-7 would be left of it.
TEST_P(ActivationsTest, KeepsTheDigitsOfItsTail) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    Values values, want, ratio;
    for (double x = function.tail; x <= -1; x += 0.125) {
      if (std::abs(function.value(x)) < SmallestNormal(dtype())) continue;
      values.push_back(RoundTo(dtype(), x));
      want.push_back(function.value(values.back()));
    }
    const int64_t n = static_cast<int64_t>(values.size());
    const View x = Input({n}, values), y = Output({n});
    Run([&](Stream& stream) { ActivationForward(stream, function.f, x, y); });
    const Values got = Get(y);
    for (int64_t i = 0; i < n; ++i) ratio.push_back(got[i] / want[i]);
    EXPECT_TRUE(AllNear(ratio, Values(n, 1), Tolerance(dtype(), 1, function.tail_scale)));
    Clear();
  }
}

// Beyond 100 all of them are straight lines.
TEST_P(ActivationsTest, ExtremesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), large = Largest(dtype());
  const Values values = {-100, 100, -large, large, nan, kInfinity};
  const Values dout(values.size(), 1);
  const Shape shape{static_cast<int64_t>(values.size())};
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    const Values kept = function.Saved(dtype(), values);
    const View x = Input(shape, values), saved = Input(shape, kept), dy = Input(shape, dout);
    const View y = Output(shape), dx = Output(shape);
    Run([&](Stream& stream) {
      ActivationForward(stream, function.f, x, y);
      ActivationBackward(stream, function.f, saved, dy, dx);
    });
    const Values out = Get(y), gradient = Get(dx);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(out[i], function.value(values[i]), SmallestNormal(dtype())) << values[i];
      const double slope = std::round(function.Slope(kept[i % 2]));
      EXPECT_NEAR(gradient[i], slope, SmallestNormal(dtype())) << values[i];
    }
    EXPECT_TRUE(std::isnan(out[4]));
    EXPECT_EQ(std::isnan(gradient[4]), std::isnan(function.nan_slope));
    if (!std::isnan(function.nan_slope)) {
      EXPECT_EQ(gradient[4], function.nan_slope);
    }
    EXPECT_EQ(out[5], function.value(kInfinity));
    Clear();
  }
}

TEST_P(ActivationsTest, GradientMatchesFiniteDifferences) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    for (const int64_t n : kSizes) {
      Random random(n, dtype());
      const Values values = function.Saved(dtype(), random.Vector(n, -8, 8));
      const Values dout = random.Vector(n);
      Values want;
      for (int64_t i = 0; i < n; ++i) want.push_back(function.Slope(values[i]) * dout[i]);
      const View saved = Input({n}, values), dy = Input({n}, dout), dx = Output({n});
      Run([&](Stream& stream) { ActivationBackward(stream, function.f, saved, dy, dx); });
      // x is up to 8: its products with the slope, not of order one, have 8 times the error.
      EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), 1, 8)));
      Run([&](Stream& stream) { ActivationBackward(stream, function.f, saved, dy, dy); });
      EXPECT_EQ(Get(dy), Get(dx)) << "in place";
      Set(dy, dout);
      Run([&](Stream& stream) { ActivationBackward(stream, function.f, saved, dy, saved); });
      EXPECT_EQ(Get(saved), Get(dx)) << "in the place of what was saved";
      Clear();
    }
  }
}

TEST_P(ActivationsTest, IsThatOfFp32RoundedOnce) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    Random random(5, dtype());
    const Values values = random.Vector(1500, -8, 8), dout = random.Vector(1500);
    const Values kept = function.Saved(dtype(), values);
    const auto run = [&](DType dtype) {
      const View x = Input({1500}, values, dtype), dy = Input({1500}, dout, dtype);
      const View saved = Input({1500}, kept, dtype);
      const View y = Output({1500}, dtype), dx = Output({1500}, dtype);
      Run([&](Stream& stream) {
        ActivationForward(stream, function.f, x, y);
        ActivationBackward(stream, function.f, saved, dy, dx);
      });
      return std::pair(Get(y), Get(dx));
    };
    const auto got = run(dtype()), want = run(kF32);
    EXPECT_EQ(got.first, RoundTo(dtype(), want.first));
    EXPECT_EQ(got.second, RoundTo(dtype(), want.second));
    Clear();
  }
}

TEST_P(ActivationsTest, TensorsBeginAnywhere) {
  constexpr int64_t kSize = 64;
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    Random random(7, dtype());
    const View x = Input({kSize}, random.Vector(kSize, -8, 8)),
               dy = Input({kSize}, random.Vector(kSize));
    const View y = Output({kSize}), dx = Output({kSize});
    Run([&](Stream& stream) {
      ActivationForward(stream, function.f, x, y);
      ActivationBackward(stream, function.f, x, dy, dx);
    });
    const Values want = Get(y), want_dx = Get(dx);
    for (const int64_t from : {0, 1, 8}) {
      for (const int64_t to : {0, 2, 16}) {
        const int64_t n = 21;
        const View part = Output({kSize}), part_dx = Output({kSize});
        Run([&](Stream& stream) {
          ActivationForward(stream, function.f, x.Slice(from, n), part.Slice(to, n));
          ActivationBackward(stream, function.f, x.Slice(from, n), dy.Slice(from, n),
                             part_dx.Slice(to, n));
        });
        const Values got = Get(part), got_dx = Get(part_dx);
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
    Clear();
  }
}

TEST_P(ActivationsTest, RefusesWrongArguments) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    const std::string forward = function.name + "_forward", backward = function.name + "_backward";
    const auto run = [f = function.f](const ConstView& x, const View& y) {
      return [=](Stream& s) { ActivationForward(s, f, x, y); };
    };
    const auto run_back = [f = function.f](const ConstView& x, const ConstView& dy,
                                           const View& dx) {
      return [=](Stream& s) { ActivationBackward(s, f, x, dy, dx); };
    };
    const View x = Output({6}), y = Output({6});
    ExpectRefused(run(x, Output({5})), "[" + forward + "] y is $T [5]");
    ExpectRefused(run(x.Slice(0, 4), x.Slice(1, 4)), "overlap");
    ExpectRefused(run_back(x, Output({5}), y), "[" + backward + "] dy");
    ExpectRefused(run_back(x, y, Output({7})), "dx is $T [7]");
    ExpectRefused(run_back(x.Slice(0, 4), y.Slice(0, 4), x.Slice(1, 4)),
                  "dx and " + function.saved + " overlap");
    const View half = Output({6}, OtherHalf());
    const std::string is = " is " + std::string(Name(half.dtype)) + " [6], want $T";
    ExpectRefused(run(x, half), "y" + is);
    ExpectRefused(run_back(x, half, y), "dy" + is);
    ExpectRefused(run_back(x, y, half), "dx" + is);
    ExpectDTypesRefused(
        forward, [&](Stream& s) { ActivationForward(s, function.f, Output({6}), Output({6})); });
    ExpectDTypesRefused(backward, [&](Stream& s) {
      ActivationBackward(s, function.f, Output({6}), Output({6}), Output({6}));
    });
    Clear();
  }
}

TEST_P(ActivationsTest, BitsDoNotDependOnThreads) {
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    const View x = Input({5003}, Random(3, dtype()).Vector(5003, -4, 4));
    const View y = Output(x.shape), dx = Output(x.shape);
    ExpectSameBits(
        [&](Stream& stream) {
          ActivationForward(stream, function.f, x, y);
          ActivationBackward(stream, function.f, x, y, dx);
        },
        {y, dx});
    Clear();
  }
}

TEST_P(ActivationsTest, ReluHasNoSlopeAtZero) {
  const View y = Input({3}, {0, -0.0, 1}), dy = Input({3}, {3, NAN, 3}), dx = Output({3});
  Run([&](Stream& stream) { ActivationBackward(stream, Activation::kRelu, y, dy, dx); });
  EXPECT_EQ(Get(dx), (Values{0, 0, 3}));
}

TEST_P(ActivationsTest, GeluIsARow) {
  const View x = Input({9}, Random(4, dtype()).Vector(9)), dy = Input({9}, Values(9, 0.5));
  const View y = Output({9}), dx = Output({9}), want = Output({9}), want_dx = Output({9});
  Run([&](Stream& stream) {
    GeluForward(stream, x, y);
    GeluBackward(stream, x, dy, dx);
    ActivationForward(stream, Activation::kGelu, x, want);
    ActivationBackward(stream, Activation::kGelu, x, dy, want_dx);
  });
  EXPECT_EQ(Get(y), Get(want));
  EXPECT_EQ(Get(dx), Get(want_dx));
}

}  // namespace
}  // namespace fsdp
