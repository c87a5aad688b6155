#include "trainer/ops/linear.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/gelu_oracle.h"
#include "trainer/ops/activations.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;
constexpr WeightLayout kLayouts[] = {WeightLayout::kInOut, WeightLayout::kOutIn};

struct Case {
  int64_t rows, in, out;
  WeightLayout layout;

  int64_t At(int64_t i, int64_t o) const {
    return layout == WeightLayout::kInOut ? i * out + o : o * in + i;
  }
  Shape WeightShape() const {
    return layout == WeightLayout::kInOut ? Shape{in, out} : Shape{out, in};
  }
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rows << " x " << c.in << " -> " << c.out
       << (c.layout == WeightLayout::kInOut ? " in-out" : " out-in");
}

Values Oracle(const Case& c, const Values& x, const Values& w, const Values& b) {
  Values y(c.rows * c.out);
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.out; ++o) {
      double sum = b.empty() ? 0 : b[o];
      for (int64_t i = 0; i < c.in; ++i) sum += x[r * c.in + i] * w[c.At(i, o)];
      y[r * c.out + o] = sum;
    }
  }
  return y;
}

struct Gradients {
  Values dx, dw, db;
};
Gradients OracleBackward(const Case& c, const Values& x, const Values& w, const Values& dy) {
  Gradients g{Values(x.size()), Values(w.size()), Values(c.out)};
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.out; ++o) {
      const double d = dy[r * c.out + o];
      g.db[o] += d;
      for (int64_t i = 0; i < c.in; ++i) {
        g.dx[r * c.in + i] += d * w[c.At(i, o)];
        g.dw[c.At(i, o)] += d * x[r * c.in + i];
      }
    }
  }
  return g;
}

class LinearTest : public OpTest {
 protected:
  static constexpr double kBefore = 0.5;

  Values Forward(const Case& c, const Values& x, const Values& w, const Values& b) {
    const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
    const View y = Output({c.rows, c.out});
    std::optional<ConstView> vb;
    if (!b.empty()) vb = Input({c.out}, b);
    Run([&](Stream& stream) { LinearForward(stream, vx, vw, c.layout, vb, y); });
    return Get(y);
  }

  // Returns for dw and db the numbers that were added.
  Gradients Backward(const Case& c, const Values& x, const Values& w, const Values& dy) {
    const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
    const View vdy = Input({c.rows, c.out}, dy);
    const View dx = Output(vx.shape), dw = Accumulated(vw.shape, kBefore);
    const View db = Accumulated({c.out}, kBefore);
    Run([&](Stream& stream) { LinearBackward(stream, vx, vw, c.layout, vdy, dx, dw, db); });
    Gradients got{Get(dx), Get(dw), Get(db)};
    for (double& v : got.dw) v -= kBefore;
    for (double& v : got.db) v -= kBefore;
    return got;
  }
};

TEST_P(LinearTest, ForwardMatchesOracle) {
  Random random(1, dtype());
  for (const WeightLayout layout : kLayouts) {
    for (const Case& c : {Case{1, 1, 1, layout},
                          {5, 3, 7, layout},
                          {37, 65, 521, layout},
                          {259, 65, 66, layout},
                          {1, 32, kernel_type() == DeviceType::kCpu ? 20001 : 2001, layout}}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
      const Values b = random.Vector(c.out);
      const double tolerance = Tolerance(dtype(), c.in);
      EXPECT_TRUE(AllNear(Forward(c, x, w, b), Oracle(c, x, w, b), tolerance));
      EXPECT_EQ(cost().flops, 2.0 * c.rows * c.in * c.out + 1.0 * c.rows * c.out);
      EXPECT_TRUE(AllNear(Forward(c, x, w, {}), Oracle(c, x, w, {}), tolerance));
      EXPECT_EQ(Forward(c, x, w, b), Forward(c, x, w, b));
      Clear();
    }
  }
}

TEST_P(LinearTest, GradientsOfLogitsMayBeFp32) {
  for (const WeightLayout layout : kLayouts) {
    const Case c{37, 65, 21, layout};
    const Values dy = Random(11, kF32).Vector(c.rows * c.out);
    Random random(12, dtype());
    const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
    const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
    const View vdy = Input({c.rows, c.out}, dy, kF32), dx = Output(vx.shape);
    const View dw = Accumulated(vw.shape, 0, kF32), db = Accumulated({c.out}, 0, kF32);
    Run([&](Stream& s) { LinearBackward(s, vx, vw, layout, vdy, dx, dw, db); });
    const Gradients want = OracleBackward(c, x, w, dy);
    EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), c.out)));
    EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(kF32, c.rows)));
    EXPECT_TRUE(AllNear(Get(db), want.db, Tolerance(kF32, c.rows)));
    Clear();
  }
}

TEST_P(LinearTest, LogitsInFp32AreNotRounded) {
  const Case c{3, 600, 70, WeightLayout::kOutIn};
  Random random(9, dtype());
  const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
  const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
  const View y = Output({c.rows, c.out}), logits = Output(y.shape, kF32);
  Run([&](Stream& s) {
    LinearForward(s, vx, vw, c.layout, std::nullopt, y);
    LinearForward(s, vx, vw, c.layout, std::nullopt, logits);
  });
  EXPECT_TRUE(AllNear(Get(logits), Oracle(c, x, w, {}), Tolerance(kF32, c.in)));
  EXPECT_EQ(Get(y), RoundTo(dtype(), Get(logits)));
}

TEST_P(LinearTest, GradientMatchesFiniteDifferences) {
  Random random(2, dtype());
  for (const WeightLayout layout : kLayouts) {
    const Case c{5, 4, 3, layout};
    SCOPED_TRACE(::testing::PrintToString(c));
    const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
    const Values b = random.Vector(c.out), dy = random.Vector(c.rows * c.out);
    const Gradients got = Backward(c, x, w, dy);
    const auto dx =
        NumericGradient([&](const Values& v) { return Dot(dy, Oracle(c, v, w, b)); }, x);
    const auto dw =
        NumericGradient([&](const Values& v) { return Dot(dy, Oracle(c, x, v, b)); }, w);
    const auto db =
        NumericGradient([&](const Values& v) { return Dot(dy, Oracle(c, x, w, v)); }, b);
    EXPECT_TRUE(AllNear(got.dx, dx, Tolerance(dtype(), c.out)));
    EXPECT_TRUE(AllNear(got.dw, dw, Tolerance(dtype(), c.rows)));
    EXPECT_TRUE(AllNear(got.db, db, Tolerance(dtype(), c.rows)));
  }
}

// A product each for dx and dW, and the sum for db: none is forgotten, and each states its own
// reads.
TEST_P(LinearTest, BackwardSaysWhatEachKernelCosts) {
  const int64_t rows = 3, in = 4, out = 5, bytes = SizeOf(dtype());
  for (const WeightLayout layout : kLayouts) {
    const bool in_out = layout == WeightLayout::kInOut;
    const Shape shape = in_out ? Shape{in, out} : Shape{out, in};
    const View x = Accumulated({rows, in}), w = Accumulated(shape), dy = Accumulated({rows, out});
    const View dx = Output({rows, in}), dw = Accumulated(shape), db = Accumulated({out});
    Run([&](Stream& s) { LinearBackward(s, x, w, layout, dy, dx, dw, db); });
    ASSERT_EQ(costs().size(), 3u);
    const Product& first = costs()[0].product;
    EXPECT_EQ(costs()[0].kind, KernelKind::kProduct);
    EXPECT_EQ((std::vector<int64_t>{first.m, first.n, first.k}),
              (std::vector<int64_t>{rows, in, out}));
    EXPECT_EQ(first.b_transposed, in_out);
    EXPECT_FALSE(first.adds);
    EXPECT_EQ(costs()[0].cost.bytes_read, bytes * (rows * out + in * out));
    const Product& second = costs()[1].product;
    EXPECT_EQ((std::vector<int64_t>{second.m, second.n, second.k}),
              (std::vector<int64_t>{shape[0], shape[1], rows}));
    EXPECT_TRUE(second.a_transposed && second.adds);
    EXPECT_EQ(costs()[1].cost.bytes_read, bytes * (rows * in + in * out));
    EXPECT_EQ(costs()[2].kind, KernelKind::kMemory);
    EXPECT_EQ(costs()[2].cost.flops, rows * out);
    // A frozen weight: dy is the bias's to read.
    Run([&](Stream& s) { LinearBackward(s, x, w, layout, dy, std::nullopt, std::nullopt, db); });
    ASSERT_EQ(costs().size(), 1u);
    EXPECT_EQ(costs()[0].cost.bytes_read, bytes * (rows * out + out));
    // A weight in fp32, and its gradient in bf16.
    const View fp32 = Accumulated(shape, 1, kF32), bf16 = Accumulated(shape, 1, kBF16);
    Run([&](Stream& s) { LinearBackward(s, x, fp32, layout, dy, dx, bf16, std::nullopt); });
    ASSERT_EQ(costs().size(), 2u);
    EXPECT_EQ(costs()[0].product.dtype, kF32);
    EXPECT_EQ(costs()[0].cost.bytes_read, bytes * rows * out + 4 * in * out);
    EXPECT_EQ(costs()[1].product.dtype, dtype());
    EXPECT_EQ(costs()[1].cost.bytes_read, bytes * rows * in + 2 * in * out);
  }
}

TEST_P(LinearTest, BackwardMatchesOracle) {
  Random random(3, dtype());
  for (const WeightLayout layout : kLayouts) {
    for (const Case& c : {Case{1, 1, 1, layout}, {67, 130, 300, layout}, {515, 31, 77, layout}}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
      const Values dy = random.Vector(c.rows * c.out);
      const Gradients got = Backward(c, x, w, dy), want = OracleBackward(c, x, w, dy);
      EXPECT_EQ(cost().flops, 4.0 * c.rows * c.in * c.out + 1.0 * c.rows * c.out);
      EXPECT_TRUE(AllNear(got.dx, want.dx, Tolerance(dtype(), c.out)));
      EXPECT_TRUE(AllNear(got.dw, want.dw, Tolerance(dtype(), c.rows)));
      EXPECT_TRUE(AllNear(got.db, want.db, Tolerance(dtype(), c.rows)));
      const Gradients again = Backward(c, x, w, dy);
      EXPECT_EQ(got.dx, again.dx);
      EXPECT_EQ(got.dw, again.dw);
      EXPECT_EQ(got.db, again.db);
      Clear();
    }
  }
}

// A gradient that is left out does not change the others, and its operand is not read.
TEST_P(LinearTest, EachGradientAlone) {
  const Case c{5, 4, 3, WeightLayout::kInOut};
  Random random(4, dtype());
  const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
  const Values dy = random.Vector(c.rows * c.out);
  const Gradients want = Backward(c, x, w, dy);
  const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
  const View vdy = Input({c.rows, c.out}, dy), no_x = Output(vx.shape), no_w = Output(vw.shape);
  const View dx = Output(vx.shape), dw = Accumulated(vw.shape, kBefore);
  const View db = Accumulated({c.out}, kBefore);
  Run([&](Stream& s) { LinearBackward(s, no_x, vw, c.layout, vdy, dx, {}, {}); });
  EXPECT_EQ(Get(dx), want.dx);
  Run([&](Stream& s) { LinearBackward(s, vx, no_w, c.layout, vdy, {}, dw, {}); });
  Run([&](Stream& s) { LinearBackward(s, no_x, no_w, c.layout, vdy, {}, {}, db); });
  for (int64_t i = 0; i < c.in * c.out; ++i) EXPECT_EQ(Get(dw)[i] - kBefore, want.dw[i]);
  for (int64_t i = 0; i < c.out; ++i) EXPECT_EQ(Get(db)[i] - kBefore, want.db[i]);
}

// The activation on the way gives the bits that it gives by itself, forward and backward.
TEST_P(LinearTest, GeluOnTheWay) {
  Random random(6, dtype());
  for (const WeightLayout layout : kLayouts) {
    for (const Case& c : {Case{1, 1, 1, layout}, {67, 130, 300, layout}, {259, 515, 66, layout}}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const View x = Input({c.rows, c.in}, random.Vector(c.rows * c.in));
      const View w = Input(c.WeightShape(), random.Vector(c.in * c.out));
      const View b = Input({c.out}, random.Vector(c.out));
      const View u = Output({c.rows, c.out}), y = Output(u.shape);
      const View fused_u = Output(u.shape), fused_y = Output(u.shape);
      Run([&](Stream& s) {
        LinearForward(s, x, w, layout, b, u);
        GeluForward(s, u, y);
        LinearGeluForward(s, x, w, layout, b, fused_u, fused_y);
      });
      EXPECT_EQ(Get(fused_u), Get(u));
      EXPECT_EQ(Get(fused_y), Get(y));

      // Backward, with x = gelu(before).
      const View before = Input(x.shape, random.Vector(c.rows * c.in));
      const View dy = Input(u.shape, random.Vector(c.rows * c.out));
      const View dx = Output(x.shape), du = Output(x.shape), fused_du = Output(x.shape);
      const View dw = Accumulated(w.shape, 0), fused_dw = Accumulated(w.shape, 0);
      const View db = Accumulated(b.shape, 0), fused_db = Accumulated(b.shape, 0);
      Run([&](Stream& s) {
        LinearBackward(s, x, w, layout, dy, dx, dw, db);
        GeluBackward(s, before, dx, du);
      });
      Run([&](Stream& s) {
        LinearGeluBackward(s, before, x, w, layout, dy, fused_du, fused_dw, fused_db);
      });
      EXPECT_EQ(cost().flops, 4.0 * c.rows * c.in * c.out + 1.0 * c.rows * c.out +
                                  kGeluBackwardFlops * c.rows * c.in);
      EXPECT_EQ(Get(fused_du), Get(du));
      EXPECT_EQ(Get(fused_dw), Get(dw));
      EXPECT_EQ(Get(fused_db), Get(db));
      Clear();
    }
  }
}

// A residual is one term more of the sum, which is rounded once: 515 and 600 are more than one
// block of k, and five rows or one are multiplied in ways of their own.
TEST_P(LinearTest, ResidualOnTheWay) {
  Random random(10, dtype());
  for (const WeightLayout layout : kLayouts) {
    for (const Case& c : {Case{1, 1, 1, layout},
                          {67, 130, 300, layout},
                          {259, 515, 66, layout},
                          {5, 600, 70, layout},
                          {1, 32, 2001, layout}}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const View x = Input({c.rows, c.in}, random.Vector(c.rows * c.in));
      const View w = Input(c.WeightShape(), random.Vector(c.in * c.out));
      const View b = Input({c.out}, random.Vector(c.out));
      const View residual = Input({c.rows, c.out}, random.Vector(c.rows * c.out));
      for (const bool bias : {false, true}) {
        const auto vb = bias ? std::optional<ConstView>(b) : std::nullopt;
        const View branch = Output({c.rows, c.out}, kF32), y = Output(branch.shape);
        Run([&](Stream& s) { LinearForward(s, x, w, layout, vb, branch); });
        Run([&](Stream& s) { LinearResidualForward(s, x, w, layout, vb, residual, y); });
        EXPECT_EQ(cost().flops, 2.0 * c.rows * c.in * c.out + (bias ? 2.0 : 1.0) * c.rows * c.out);
        EXPECT_EQ(cost().bytes_read, static_cast<double>(x.bytes() + w.bytes() + residual.bytes() +
                                                         (bias ? b.bytes() : 0)));
        Values want = Get(branch);
        const Values terms = Get(residual);
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] = static_cast<float>(want[i]) + static_cast<float>(terms[i]);
        }
        EXPECT_EQ(Get(y), RoundTo(dtype(), want));
      }
      Clear();
    }
  }
}

// Rows of whole packs, which a library's products take; its kernels may round in other places than
// ours, so nothing is held to bits. Each activation is two roundings behind the exact sum, of a
// slope of 1.13 at most.
TEST_P(LinearTest, RowsOfPacksMatchOracle) {
  Random random(11, dtype());
  for (const WeightLayout layout : kLayouts) {
    const Case c{40, 48, 72, layout};
    SCOPED_TRACE(::testing::PrintToString(c));
    const Values x = random.Vector(c.rows * c.in), w = random.Vector(c.in * c.out);
    const Values b = random.Vector(c.out), terms = random.Vector(c.rows * c.out);
    const Values before = random.Vector(c.rows * c.in), dy = random.Vector(c.rows * c.out);
    const double tolerance = Tolerance(dtype(), c.in + 1);
    const View vx = Input({c.rows, c.in}, x), vw = Input(c.WeightShape(), w);
    const View residual = Input({c.rows, c.out}, terms);
    for (const bool bias : {false, true}) {
      const Values want = Oracle(c, x, w, bias ? b : Values());
      EXPECT_TRUE(AllNear(Forward(c, x, w, bias ? b : Values()), want, tolerance));
      std::optional<ConstView> vb;
      if (bias) vb = Input({c.out}, b);
      const View u = Output(residual.shape), y = Output(residual.shape), sum = Output(u.shape);
      Run([&](Stream& s) { LinearGeluForward(s, vx, vw, layout, vb, u, y); });
      Run([&](Stream& s) { LinearResidualForward(s, vx, vw, layout, vb, residual, sum); });
      Values gelu = want, added = want;
      for (double& v : gelu) v = GeluOracle(v);
      for (size_t i = 0; i < added.size(); ++i) added[i] += terms[i];
      EXPECT_TRUE(AllNear(Get(u), want, tolerance));
      EXPECT_TRUE(AllNear(Get(y), gelu, 3 * tolerance));
      EXPECT_TRUE(AllNear(Get(sum), added, tolerance));
    }

    const Gradients got = Backward(c, x, w, dy), want = OracleBackward(c, x, w, dy);
    EXPECT_TRUE(AllNear(got.dx, want.dx, Tolerance(dtype(), c.out)));
    EXPECT_TRUE(AllNear(got.dw, want.dw, Tolerance(dtype(), c.rows)));
    EXPECT_TRUE(AllNear(got.db, want.db, Tolerance(dtype(), c.rows)));
    const View du = Output(vx.shape), dw = Accumulated(vw.shape, 0),
               vdy = Input({c.rows, c.out}, dy);
    const View u = Input(vx.shape, before);
    Run([&](Stream& s) { LinearGeluBackward(s, u, vx, vw, layout, vdy, du, dw, {}); });
    Values want_du = want.dx;
    double largest = 1;
    for (size_t i = 0; i < want_du.size(); ++i) {
      largest = std::max(largest, std::abs(want.dx[i]));
      want_du[i] *= GeluSlope(before[i]);
    }
    EXPECT_TRUE(AllNear(Get(du), want_du, 3 * largest * Tolerance(dtype(), c.out)));
    EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(dtype(), c.rows)));
    Clear();
  }
}

// With a weight in fp32 a product is that of fp32, rounded once. A gradient of whatever dtype is
// the one in fp32, rounded once: 1100 rows are more than one block of a sum.
TEST_P(LinearTest, ParametersHaveDTypesOfTheirOwn) {
  for (const WeightLayout layout : kLayouts) {
    const Case c{1100, 67, 77, layout};
    Random random(7, dtype()), parameters(8, kF32);
    const Values x = random.Vector(c.rows * c.in), dy = random.Vector(c.rows * c.out);
    const Values w = parameters.Vector(c.in * c.out), b = parameters.Vector(c.out);
    struct Results {
      Values y, dx, dw, db;
    };
    const auto run = [&](DType dtype, DType gradients) {
      const View vx = Input({c.rows, c.in}, x, dtype), vdy = Input({c.rows, c.out}, dy, dtype);
      const View vw = Input(c.WeightShape(), w, kF32), vb = Input({c.out}, b, kF32);
      const View y = Output({c.rows, c.out}, dtype), dx = Output(vx.shape, dtype);
      const View dw = Accumulated(vw.shape, 0, gradients), db = Accumulated({c.out}, 1, gradients);
      Run([&](Stream& s) {
        LinearForward(s, vx, vw, layout, vb, y);
        LinearBackward(s, vx, vw, layout, vdy, dx, dw, db);
      });
      return Results{Get(y), Get(dx), Get(dw), Get(db)};
    };
    const Results fp32 = run(kF32, kF32), own = run(dtype(), kF32);
    EXPECT_EQ(own.y, RoundTo(dtype(), fp32.y));
    EXPECT_EQ(own.dx, RoundTo(dtype(), fp32.dx));
    for (const DType gradients : {kBF16, kF16}) {
      const Results got = run(dtype(), gradients);
      EXPECT_EQ(got.dw, RoundTo(gradients, own.dw));
      EXPECT_EQ(got.db, RoundTo(gradients, own.db));
    }
    Clear();
  }
}

TEST_P(LinearTest, NoRows) {
  const Case c{0, 4, 3, WeightLayout::kOutIn};
  const Values w = Random(5, dtype()).Vector(c.in * c.out);
  EXPECT_EQ(Backward(c, {}, w, {}).dw, Values(c.in * c.out));
}

TEST_P(LinearTest, RefusesWrongArguments) {
  const auto kInOut = WeightLayout::kInOut;
  const View x = Output({5, 4}), w = Output({4, 3}), b = Output({3}), y = Output({5, 3});
  const auto forward = [&](View vx, View vw, View vb, View vy, const std::string& message) {
    ExpectRefused([=](Stream& s) { LinearForward(s, vx, vw, kInOut, vb, vy); },
                  "[linear_forward] " + message);
  };
  forward(x.Reshape({20}), w, b, y, "x is $T [20], want $T with 2 dimensions");
  forward(x, w.Reshape({3, 4}), b, y, "w is $T [3, 4], want $T [4, 3]");
  const std::string is_half = " is " + std::string(Name(OtherHalf()));
  forward(x, Output({4, 3}, OtherHalf()), b, y, "w" + is_half);
  forward(x, w, Output({3}, OtherHalf()), y, "b" + is_half);
  forward(x, w, b, Output({5, 3}, OtherHalf()), "y" + is_half);
  forward(x, w, y.Slice(0, 4), y, "b is $T [4], want $T [3]");
  forward(x, w, y.Slice(2, 3), y, "y and b overlap");
  forward(x, y.Slice(3, 12).Reshape({4, 3}), b, y, "y and w overlap");
  const auto backward = [&](View vdy, std::optional<View> dx, std::optional<View> dw,
                            std::optional<View> db, const std::string& message) {
    ExpectRefused([=](Stream& s) { LinearBackward(s, x, w, kInOut, vdy, dx, dw, db); },
                  "[linear_backward] " + message);
  };
  backward(y, {}, {}, {}, "nothing to compute");
  backward(y.Slice(0, 12).Reshape({4, 3}), x, {}, {}, "dy is $T [4, 3], want $T [5, 3]");
  backward(y, w, {}, {}, "dx is $T [4, 3], want $T [5, 4]");
  backward(y, x, {}, {}, "dx and x overlap");
  backward(y, {}, w, {}, "dw and w overlap");
  backward(y, {}, {}, y.Slice(0, 3), "db and dy overlap");
  const View u = Output({5, 3});
  ExpectRefused([&](Stream& s) { LinearGeluForward(s, x, w, kInOut, b, y, y); },
                "[linear_gelu_forward] u and y overlap");
  const auto residual = [&](View from, View vy, const std::string& message) {
    ExpectRefused([=](Stream& s) { LinearResidualForward(s, x, w, kInOut, b, from, vy); },
                  "[linear_residual_forward] " + message);
  };
  residual(y, y, "y and residual overlap");
  residual(x, y, "residual is $T [5, 4], want $T [5, 3]");
  residual(Output({5, 3}, OtherHalf()), y, "residual" + is_half);
  residual(u, Output({5, 3}, OtherHalf()), "y" + is_half);
  ExpectRefused([&](Stream& s) { LinearGeluForward(s, x, w, kInOut, b, x, y); },
                "[linear_gelu_forward] u is $T [5, 4], want $T [5, 3]");
  ExpectRefused([&](Stream& s) { LinearGeluBackward(s, u, x, w, kInOut, y, x, {}, {}); },
                "[linear_gelu_backward] ");
  ExpectDTypesRefused("linear_forward", [&](Stream& s) {
    LinearForward(s, Output({5, 4}), Output({4, 3}), kInOut, Output({3}), Output({5, 3}));
  });
  ExpectDTypesRefused("linear_residual_forward", [&](Stream& s) {
    const View x = Output({5, 4}), w = Output({4, 3}), from = Output({5, 3});
    LinearResidualForward(s, x, w, kInOut, std::nullopt, from, Output({5, 3}));
  });
  ExpectDTypesRefused("linear_backward", [&](Stream& s) {
    const View x = Output({5, 4}), w = Output({4, 3}), dy = Output({5, 3});
    LinearBackward(s, x, w, kInOut, dy, Output({5, 4}), Output({4, 3}), Output({3}));
  });
  ExpectDTypesRefused("linear_gelu_forward", [&](Stream& s) {
    const View x = Output({5, 4}), w = Output({4, 3}), b = Output({3}), u = Output({5, 3});
    LinearGeluForward(s, x, w, kInOut, b, u, Output({5, 3}));
  });
  ExpectDTypesRefused("linear_gelu_backward", [&](Stream& s) {
    const View u = Output({5, 4}), x = Output({5, 4}), w = Output({4, 3}), dy = Output({5, 3});
    LinearGeluBackward(s, u, x, w, kInOut, dy, Output({5, 4}), Output({4, 3}), Output({3}));
  });
}

FSDP_INSTANTIATE_OP_TEST(LinearTest, kF32, kBF16, kF16);

}  // namespace
}  // namespace fsdp
