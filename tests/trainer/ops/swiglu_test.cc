#include "trainer/ops/swiglu.h"

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

struct Case {
  int64_t rows, inner;
};
constexpr Case kCases[] = {{0, 4}, {1, 1}, {3, 7}, {5, 64}, {2, 201}};

double Silu(double g) { return g / (1 + std::exp(-g)); }
double SiluSlope(double g) {
  const double s = 1 / (1 + std::exp(-g));
  return s * (1 + g * (1 - s));
}

struct Unit {
  std::string name;  // "swiglu": its operations are "swiglu_forward" and "swiglu_backward".
  void (*forward)(Stream& stream, ConstView x, View y);
  void (*backward)(Stream& stream, ConstView x, ConstView dy, View dx);
  double (*gate)(double g);
  double (*slope)(double g);
  double forward_flops, backward_flops;
  double low, low_fp16;  // Gates of which a normal number is left,
  double low_scale;      // whose rounding is so many times a relative error.
};
const Unit kUnits[] = {
    {"swiglu", SwigluForward, SwigluBackward, Silu, SiluSlope, 20, 26, -20, -9, 7},
    {"gated_gelu", GatedGeluForward, GatedGeluBackward, GeluOracle, GeluSlope, 26, 39, -5, -3, 26},
};

Values Oracle(const Unit& unit, const Case& c, const Values& x) {
  Values y;
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.inner; ++j) {
      const double g = x[i * 2 * c.inner + j], u = x[i * 2 * c.inner + c.inner + j];
      y.push_back(unit.gate(g) * u);
    }
  }
  return y;
}

class SwigluTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(SwigluTest, kF32, kBF16, kF16);

// Gates up to 8: results are up to 8, and Tolerance counts from 1.
TEST_P(SwigluTest, ForwardMatchesOracle) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
    for (const Case& c : kCases) {
      Random random(c.inner, dtype());
      Values values = random.Vector(c.rows * 2 * c.inner, -8, 8);
      const View x = Input({c.rows, 2 * c.inner}, values), y = Output({c.rows, c.inner});
      Run([&](Stream& stream) { unit.forward(stream, x, y); });
      EXPECT_TRUE(AllNear(Get(y), Oracle(unit, c, values), Tolerance(dtype(), 1)));
      EXPECT_EQ(cost().flops, unit.forward_flops * static_cast<double>(c.rows * c.inner));
      Clear();
    }
    Clear();
  }
}

TEST_P(SwigluTest, GradientMatchesFiniteDifferences) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
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
              return Dot(dy, Oracle(unit, {1, c.inner}, v));
            },
            Values(begin, begin + 2 * c.inner));
        std::copy(gradient.begin(), gradient.end(), want.begin() + i * 2 * c.inner);
      }
      const Shape shape{c.rows, 2 * c.inner};
      const View x = Input(shape, values), dy = Input({c.rows, c.inner}, dout), dx = Output(shape);
      Run([&](Stream& stream) { unit.backward(stream, x, dy, dx); });
      // Operands of up to 4: products of three of them.
      EXPECT_TRUE(AllNear(Get(dx), want, Tolerance(dtype(), 1, 16)));
      Run([&](Stream& stream) { unit.backward(stream, x, dy, x); });
      EXPECT_EQ(Get(x), Get(dx)) << "in place";
      EXPECT_EQ(cost().flops, unit.backward_flops * static_cast<double>(c.rows * c.inner));
      Clear();
    }
    Clear();
  }
}

// 1 - s cancels for large gates, exp(-g) overflows for small ones.
TEST_P(SwigluTest, ExtremesAndNaN) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
    const double nan = std::numeric_limits<double>::quiet_NaN(), large = Largest(dtype());
    const double low = dtype() == kF16 ? unit.low_fp16 : unit.low;
    const Values gates = {-large, -200, low, 20, 200, large, nan};
    const int64_t n = static_cast<int64_t>(gates.size());
    Values values = gates;
    values.resize(2 * n, 1.0);
    const View x = Input({1, 2 * n}, values), y = Output({1, n}), dx = Output({1, 2 * n});
    const View dy = Input({1, n}, Values(n, 1));
    Run([&](Stream& stream) {
      unit.forward(stream, x, y);
      unit.backward(stream, x, dy, dx);
    });
    const Values out = Get(y), gradient = Get(dx);
    // exp makes low's rounding a relative error.
    const double tolerance = Tolerance(dtype(), 1, unit.low_scale);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 0);
    EXPECT_NEAR(out[2] / unit.gate(low), 1, tolerance);
    EXPECT_EQ(out[3], RoundTo(dtype(), unit.gate(20)));
    EXPECT_EQ(out[5], large);
    EXPECT_TRUE(std::isnan(out[6]));
    EXPECT_EQ(gradient[0], 0);
    EXPECT_NEAR(gradient[2] / unit.slope(low), 1, tolerance);
    EXPECT_EQ(gradient[4], 1);
    EXPECT_EQ(gradient[5], 1);
    EXPECT_TRUE(std::isnan(gradient[6]));
    // A slope vanishes before it meets a gate beyond which there is nothing.
    Set(x, {-large, 0, 0, 0, 0, 0, 0, 4, 1, 1, 1, 1, 1, 1});
    Run([&](Stream& stream) {
      unit.forward(stream, x, y);
      unit.backward(stream, x, dy, dx);
    });
    EXPECT_EQ(Get(y)[0], 0);
    EXPECT_EQ(Get(dx)[0], 0);
    Clear();
  }
}

TEST_P(SwigluTest, IsThatOfFp32RoundedOnce) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
    const int64_t rows = 3, inner = 700;
    Random random(5, dtype());
    const Values values = random.Vector(rows * 2 * inner, -8, 8),
                 dout = random.Vector(rows * inner);
    const auto run = [&](DType dtype) {
      const View x = Input({rows, 2 * inner}, values, dtype),
                 dy = Input({rows, inner}, dout, dtype);
      const View y = Output({rows, inner}, dtype), dx = Output({rows, 2 * inner}, dtype);
      Run([&](Stream& stream) {
        unit.forward(stream, x, y);
        unit.backward(stream, x, dy, dx);
      });
      return std::pair(Get(y), Get(dx));
    };
    const auto got = run(dtype()), want = run(kF32);
    EXPECT_EQ(got.first, RoundTo(dtype(), want.first));
    EXPECT_EQ(got.second, RoundTo(dtype(), want.second));
    Clear();
  }
}

TEST_P(SwigluTest, RefusesWrongArguments) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
    const View x = Output({2, 6}), y = Output({2, 3}), dx = Output({2, 6});
    ExpectRefused([&](Stream& s) { unit.forward(s, y, y); },
                  "[" + unit.name + "_forward] x is $T [2, 3]");
    ExpectRefused([&](Stream& s) { unit.forward(s, x, Output({6})); }, "y is $T [6]");
    ExpectRefused(
        [&](Stream& s) {
          unit.forward(s, x, x.Slice(0, 6).Reshape({2, 3}));
        },
        "y and x overlap");
    ExpectRefused([&](Stream& s) { unit.backward(s, x, y, y); },
                  "[" + unit.name + "_backward] dx is");
    ExpectRefused(
        [&](Stream& s) {
          unit.backward(s, x, dx.Slice(0, 6).Reshape({2, 3}), dx);
        },
        "dx and dy overlap");
    const DType half = OtherHalf();
    const std::string is = " is " + std::string(Name(half));
    ExpectRefused([&](Stream& s) { unit.forward(s, x, Output({2, 3}, half)); }, "y" + is);
    ExpectRefused([&](Stream& s) { unit.backward(s, x, Output({2, 3}, half), dx); }, "dy" + is);
    ExpectRefused([&](Stream& s) { unit.backward(s, x, y, Output({2, 6}, half)); }, "dx" + is);
    ExpectDTypesRefused(unit.name + "_forward", [&](Stream& s) {
      unit.forward(s, Output({2, 6}), Output({2, 3}));
    });
    ExpectDTypesRefused(unit.name + "_backward", [&](Stream& s) {
      unit.backward(s, Output({2, 6}), Output({2, 3}), Output({2, 6}));
    });
    Clear();
  }
}

TEST_P(SwigluTest, BitsDoNotDependOnThreads) {
  for (const Unit& unit : kUnits) {
    SCOPED_TRACE(unit.name);
    const View x = Input({37, 106}, Random(3, dtype()).Vector(37 * 106, -4, 4));
    const View y = Output({37, 53}), dx = Output(x.shape);
    ExpectSameBits(
        [&](Stream& stream) {
          unit.forward(stream, x, y);
          unit.backward(stream, x, y, dx);
        },
        {y, dx});
    Clear();
  }
}

// Rows of one stretch of experts, and of another: every bit of all at once.
TEST_P(SwigluTest, StretchesOfRowsMakeTheWhole) {
  const int64_t rows = 7, inner = 65;
  Random random(11, dtype());
  const View x = Input({rows, 2 * inner}, random.Vector(rows * 2 * inner, -4, 4));
  const View dy = Input({rows, inner}, random.Vector(rows * inner));
  const View w = Input({rows}, Random(2, kF32).Vector(rows), kF32);
  const View offsets = Input({5}, {0, 2, 2, 5, 6}, DType::kInt32);  // The last row is nobody's.
  const auto results = [&] {
    return std::vector{Output(dy.shape), Output(x.shape), Output({rows}, kF32)};
  };
  const std::vector<View> all = results(), parts = results();
  const auto run = [&](const std::vector<View>& to, const ConstView& of, int64_t count) {
    Run([&](Stream& s) {
      WeightedSwigluForward(s, x, w, of, to[0], count);
      WeightedSwigluBackward(s, x, w, of, dy, to[1], to[2], count);
    });
    return cost().flops;
  };
  const double flops = run(all, offsets, 1);
  EXPECT_EQ(run(parts, offsets.Slice(2, 3), 2), flops / 2);
  for (const double value : Get(parts[2].Slice(0, 2))) EXPECT_TRUE(std::isnan(value));
  run(parts, offsets.Slice(0, 3), 2);
  for (size_t i = 0; i < all.size(); ++i) {
    const Values a = Get(parts[i]), b = Get(all[i]);
    for (size_t j = 0; j < a.size(); ++j) {
      ASSERT_TRUE(a[j] == b[j] || (std::isnan(a[j]) && std::isnan(b[j]))) << i << " " << j;
    }
  }
}

// Rows behind the offsets' last, which hold NaN, are left alone.
TEST_P(SwigluTest, WeightsMultiplyRows) {
  for (const auto& [rows, inner] : {Case{1, 1}, {3, 7}, {5, 64}, {2, 201}, {4, 1100}}) {
    for (const bool has_offsets : {false, true}) {
      Random random(inner + 2, dtype());
      const int64_t used = has_offsets ? rows - 1 : rows;
      const Values values = random.Vector(rows * 2 * inner, -4, 4);
      const Values dout = random.Vector(rows * inner);
      const Values scales = Random(inner, kF32).Vector(rows);
      const View x = Input({rows, 2 * inner}, values), y = Output({rows, inner});
      const View dy = Input(y.shape, dout), dx = Output(x.shape), w = Input({rows}, scales, kF32);
      const View dw = Output({rows}, kF32), plain_dx = Output(x.shape, kF32);
      std::optional<ConstView> offsets;
      if (has_offsets) offsets = Input({3}, {0, 0, static_cast<double>(used)}, DType::kInt32);
      Run([&](Stream& s) { WeightedSwigluForward(s, x, w, offsets, y); });
      Values want = Oracle(kUnits[0], {used, inner}, values), want_dw(used), scaled(rows * inner);
      for (int64_t i = 0; i < used * inner; ++i) {
        want_dw[i / inner] += want[i] * dout[i];
        want[i] *= scales[i / inner];
        scaled[i] = dout[i] * scales[i / inner];
      }
      const auto used_of = [&](const View& view) {
        Values got = Get(view);
        for (size_t i = got.size() * used / rows; i < got.size(); ++i) {
          EXPECT_TRUE(std::isnan(got[i])) << "element " << i;
        }
        got.resize(got.size() * used / rows);
        return got;
      };
      EXPECT_TRUE(AllNear(used_of(y), want, Tolerance(dtype(), 1, 4)));
      EXPECT_EQ(cost().flops, 21.0 * static_cast<double>(rows * inner));

      // dx is that of a unit whose dy has the weight, in fp32.
      const View x32 = Input(x.shape, values, kF32), dy32 = Input(y.shape, scaled, kF32);
      Run([&](Stream& s) {
        WeightedSwigluBackward(s, x, w, offsets, dy, dx, dw);
        SwigluBackward(s, x32, dy32, plain_dx);
      });
      Values want_dx = Get(plain_dx);
      want_dx.resize(used * 2 * inner);
      EXPECT_TRUE(AllNear(used_of(dx), want_dx, Tolerance(dtype(), 1, 16)));
      EXPECT_TRUE(AllNear(used_of(dw), want_dw, Tolerance(kF32, inner, 16)));
      if (has_offsets) continue;
      Run([&](Stream& s) { WeightedSwigluBackward(s, x, w, offsets, dy, x, dw); });
      EXPECT_EQ(Get(x), Get(dx)) << "in place";
      ExpectSameBits([&](Stream& s) { WeightedSwigluBackward(s, dx, w, offsets, dy, x, dw); },
                     {x, dw});
    }
    Clear();
  }
}

TEST_P(SwigluTest, RefusesWrongWeights) {
  const View x = Output({2, 6}), y = Output({2, 3}), w = Output({2}, kF32), dw = Output({2}, kF32);
  ExpectRefused([&](Stream& s) { WeightedSwigluForward(s, x, Output({3}, kF32), {}, y); },
                "[weighted_swiglu_forward] weights is");
  ExpectRefused([&](Stream& s) { WeightedSwigluForward(s, x, w, w, y); }, "offsets is fp32");
  ExpectRefused([&](Stream& s) { WeightedSwigluBackward(s, x, w, {}, y, x, w); },
                "dweights and weights overlap");
  ExpectRefused([&](Stream& s) { WeightedSwigluBackward(s, x, w, {}, y, y, dw); },
                "[weighted_swiglu_backward] dx is");
  ExpectRefused([&](Stream& s) { WeightedSwigluBackward(s, x, w, {}, y, x, Output({3}, kF32)); },
                "[weighted_swiglu_backward] dweights is");
}

}  // namespace
}  // namespace fsdp
