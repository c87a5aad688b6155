#include "trainer/ops/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

struct Case {
  int64_t rows, cols;
  float eps;
};
// One column has no variance: a large eps keeps 1 / sqrt(eps) of order one. 600 rows make 32 blocks
// of sums, 40 make 2.
constexpr Case kCases[] = {{1, 1, 0.25f},  {3, 1, 0.25f},   {1, 7, 1e-5f}, {5, 8, 1e-5f},
                           {3, 33, 1e-5f}, {40, 21, 1e-5f}, {600, 5, 0.1f}};

struct Oracle {
  std::vector<double> y, mean, rstd;

  Oracle(const Case& c, const std::vector<double>& x, const std::vector<double>& w,
         const std::vector<double>& b) {
    for (int64_t i = 0; i < c.rows; ++i) {
      const double* row = x.data() + i * c.cols;
      double m = 0, squares = 0;
      for (int64_t j = 0; j < c.cols; ++j) m += row[j] / c.cols;
      for (int64_t j = 0; j < c.cols; ++j) squares += (row[j] - m) * (row[j] - m) / c.cols;
      const double r = 1 / std::sqrt(squares + c.eps);
      for (int64_t j = 0; j < c.cols; ++j) y.push_back(w[j] * (row[j] - m) * r + b[j]);
      mean.push_back(m);
      rstd.push_back(r);
    }
  }
};

struct Inputs {
  std::vector<double> x, w, b, dy;

  Inputs(const Case& c, DType dtype, DType weights) {
    Random random(42, dtype), parameters(43, weights);
    x = random.Vector(c.rows * c.cols);
    w = parameters.Vector(c.cols);
    b = parameters.Vector(c.cols);
    dy = random.Vector(c.rows * c.cols);
  }
  Inputs(const Case& c, DType dtype) : Inputs(c, dtype, dtype) {}
};

class LayerNormTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(LayerNormTest, kF32, kBF16, kF16);

TEST_P(LayerNormTest, ForwardMatchesOracle) {
  const auto run = [&](const Case& c, DType weights) {
    const Inputs in(c, dtype(), weights);
    const View x = Input({c.rows, c.cols}, in.x), w = Input({c.cols}, in.w, weights),
               b = Input({c.cols}, in.b, weights);
    const View y = Output(x.shape), mean = Output({c.rows}, kF32), rstd = Output({c.rows}, kF32);
    Run([&](Stream& stream) { LayerNormForward(stream, x, w, b, c.eps, y, mean, rstd); });
    const Oracle want(c, in.x, in.w, in.b);
    const double tolerance = Tolerance(kF32, c.cols);
    EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), c.cols))) << c.rows << " x " << c.cols;
    EXPECT_TRUE(AllNear(Get(mean), want.mean, tolerance));
    EXPECT_TRUE(AllNear(Get(rstd), want.rstd, tolerance));

    Run([&](Stream& stream) { LayerNormForward(stream, x, w, b, c.eps, x, mean, rstd); });
    EXPECT_EQ(Get(x), Get(y)) << "in place";
    Clear();
  };
  for (const Case& c : kCases) {
    for (const DType weights : WeightDTypes()) run(c, weights);
  }
}

// mean(x^2) - mean^2 would lose every digit of the variance here: the mean leaves 11 bits of x.
TEST_P(LayerNormTest, KeepsDigitsUnderALargeMean) {
  const Case c{1, 64, 1e-5f};
  Inputs in(c, dtype());
  const double large = 0x1p-11 / Epsilon(dtype());  // 4096 in fp32.
  for (double& v : in.x) v = RoundTo(dtype(), v + large);
  const View x = Input({1, 64}, in.x), w = Input({64}, in.w), b = Input({64}, in.b);
  const View y = Output({1, 64}), mean = Output({1}, kF32), rstd = Output({1}, kF32);
  Run([&](Stream& stream) { LayerNormForward(stream, x, w, b, c.eps, y, mean, rstd); });
  // The mean alone is rounded, in fp32, in values of order one.
  EXPECT_TRUE(
      AllNear(Get(y), Oracle(c, in.x, in.w, in.b).y, Tolerance(dtype(), 0, std::max(1.0, large))));
}

TEST_P(LayerNormTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    const Inputs in(c, dtype());
    const auto loss = [&](const auto& x, const auto& w, const auto& b) {
      return Dot(in.dy, Oracle(c, x, w, b).y);
    };
    std::vector<double> want_dx;  // Row by row: they do not depend on each other.
    for (int64_t i = 0; i < c.rows; ++i) {
      const auto row = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + i * c.cols, all.begin() + (i + 1) * c.cols);
      };
      const auto row_loss = [&, dy = row(in.dy)](const auto& x) {
        return Dot(dy, Oracle({1, c.cols, c.eps}, x, in.w, in.b).y);
      };
      const auto gradient = NumericGradient(row_loss, row(in.x));
      want_dx.insert(want_dx.end(), gradient.begin(), gradient.end());
    }
    auto want_dw = NumericGradient([&](const auto& v) { return loss(in.x, v, in.b); }, in.w);
    auto want_db = NumericGradient([&](const auto& v) { return loss(in.x, in.w, v); }, in.b);
    for (double& d : want_dw) d += 1;
    for (double& d : want_db) d += 1;

    const Oracle saved(c, in.x, in.w, in.b);
    const Shape shape{c.rows, c.cols};
    const View x = Input(shape, in.x), w = Input({c.cols}, in.w), dy = Input(shape, in.dy);
    const View mean = Input({c.rows}, saved.mean, kF32), rstd = Input({c.rows}, saved.rstd, kF32);
    const View dx = Output(shape), dw = Accumulated({c.cols}), db = Accumulated({c.cols});
    const View workspace =
        Workspace(LayerNormBackwardWorkspaceBytes(c.rows, c.cols, dtype(), kernel_type()));
    const auto run = [&](LayerNormDx mode, const View& to) {
      Set(dw, std::vector<double>(c.cols, 1));
      Set(db, std::vector<double>(c.cols, 1));
      Run([&](Stream& stream) {
        LayerNormBackward(stream, x, w, mean, rstd, dy, mode, to, dw, db, workspace);
      });
      EXPECT_TRUE(AllNear(Get(dw), want_dw, Tolerance(dtype(), c.rows + c.cols)));
      EXPECT_TRUE(AllNear(Get(db), want_db, Tolerance(dtype(), c.rows + c.cols)));
    };
    const double tolerance = Tolerance(dtype(), c.cols);
    run(LayerNormDx::kOverwrite, dx);
    EXPECT_TRUE(AllNear(Get(dx), want_dx, tolerance)) << c.rows << " x " << c.cols;

    const View sum = Accumulated(shape, 3);
    run(LayerNormDx::kAdd, sum);
    auto want_sum = want_dx;
    for (double& d : want_sum) d += 3;
    EXPECT_TRUE(AllNear(Get(sum), want_sum, tolerance));

    Set(db, std::vector<double>(c.cols, 1));
    Run([&](Stream& stream) {
      LayerNormBackward(stream, x, w, mean, rstd, dy, LayerNormDx::kOverwrite, sum, std::nullopt,
                        db, workspace);
    });
    EXPECT_EQ(Get(sum), Get(dx)) << "without dw";
    EXPECT_TRUE(AllNear(Get(db), want_db, Tolerance(dtype(), c.rows + c.cols)));

    run(LayerNormDx::kOverwrite, dy);
    EXPECT_EQ(Get(dy), Get(dx)) << "in place";
    Clear();
  }
}

// Whatever the dtypes of parameters and of their gradients: the bits of fp32, rounded once.
TEST_P(LayerNormTest, IsThatOfFp32RoundedOnce) {
  const Case c{50, 700, 1e-5f};
  const Shape shape{c.rows, c.cols};
  struct Results {
    std::vector<double> y, dx, added, dw, db;
  };
  for (const DType weights : WeightDTypes()) {
    const Inputs in(c, dtype(), weights);
    const auto run = [&](DType dtype, DType weights, DType gradients) {
      const View x = Input(shape, in.x, dtype), dy = Input(shape, in.dy, dtype);
      const View w = Input({c.cols}, in.w, weights), b = Input({c.cols}, in.b, weights);
      const View mean = Output({c.rows}, kF32), rstd = Output({c.rows}, kF32);
      const View y = Output(shape, dtype), dx = Output(shape, dtype);
      const View added = Accumulated(shape, 3, dtype);
      const View dw = Accumulated({c.cols}, 1, gradients), db = Accumulated({c.cols}, 1, gradients);
      const View workspace =
          Workspace(LayerNormBackwardWorkspaceBytes(c.rows, c.cols, dtype, kernel_type()));
      Run([&](Stream& s) {
        LayerNormForward(s, x, w, b, c.eps, y, mean, rstd);
        LayerNormBackward(s, x, w, mean, rstd, dy, LayerNormDx::kAdd, added, std::nullopt,
                          std::nullopt, workspace);
        LayerNormBackward(s, x, w, mean, rstd, dy, LayerNormDx::kOverwrite, dx, dw, db, workspace);
      });
      return Results{Get(y), Get(dx), Get(added), Get(dw), Get(db)};
    };
    const Results want = run(kF32, kF32, kF32);
    for (const DType gradients : {kF32, kBF16, kF16}) {
      const Results got = run(dtype(), weights, gradients);
      EXPECT_EQ(got.y, RoundTo(dtype(), want.y));
      EXPECT_EQ(got.dx, RoundTo(dtype(), want.dx));
      EXPECT_EQ(got.added, RoundTo(dtype(), want.added));
      EXPECT_EQ(got.dw, RoundTo(gradients, want.dw));
      EXPECT_EQ(got.db, RoundTo(gradients, want.db));
      Clear();
    }
  }
}

// More columns than the threads of a row hold. w and b need not have one dtype.
TEST_P(LayerNormTest, LongRows) {
  const Case c{3, 4200, 1e-5f};
  const Inputs in(c, dtype());
  const Oracle want(c, in.x, in.w, in.b);
  std::vector<double> want_dx, want_dw(c.cols, 1), want_db(c.cols, 1);
  for (int64_t i = 0; i < c.rows; ++i) {
    const double *x = &in.x[i * c.cols], *dy = &in.dy[i * c.cols];
    const auto xhat = [&](int64_t j) { return (x[j] - want.mean[i]) * want.rstd[i]; };
    double mean_g = 0, mean_gx = 0;
    for (int64_t j = 0; j < c.cols; ++j) {
      mean_g += in.w[j] * dy[j] / c.cols;
      mean_gx += in.w[j] * dy[j] * xhat(j) / c.cols;
    }
    for (int64_t j = 0; j < c.cols; ++j) {
      want_dx.push_back(want.rstd[i] * (in.w[j] * dy[j] - mean_g - xhat(j) * mean_gx));
      want_dw[j] += dy[j] * xhat(j);
      want_db[j] += dy[j];
    }
  }
  const View x = Input({c.rows, c.cols}, in.x), w = Input({c.cols}, in.w);
  const View b = Input({c.cols}, in.b, kF32), y = Output(x.shape);
  const View mean = Output({c.rows}, kF32), rstd = Output({c.rows}, kF32);
  const View dy = Input(x.shape, in.dy), dw = Accumulated({c.cols}), db = Accumulated({c.cols});
  const View workspace =
      Workspace(LayerNormBackwardWorkspaceBytes(c.rows, c.cols, dtype(), kernel_type()));
  Run([&](Stream& stream) {
    LayerNormForward(stream, x, w, b, c.eps, y, mean, rstd);
    LayerNormBackward(stream, x, w, mean, rstd, dy, LayerNormDx::kOverwrite, dy, dw, db, workspace);
  });
  EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), c.cols)));
  EXPECT_TRUE(AllNear(Get(dy), want_dx, Tolerance(dtype(), c.cols)));
  // xhat has the sums of a row.
  EXPECT_TRUE(AllNear(Get(dw), want_dw, Tolerance(dtype(), c.rows + c.cols)));
  EXPECT_TRUE(AllNear(Get(db), want_db, Tolerance(dtype(), c.rows)));
}

TEST_P(LayerNormTest, NoRows) {
  const View x = Input({0, 4}, {}), dy = Input({0, 4}, {}), w = Input({4}, {1, 1, 1, 1}),
             none = Input({0}, {}, kF32);
  const View dw = Accumulated({4}), db = Accumulated({4});
  const View workspace = Workspace(LayerNormBackwardWorkspaceBytes(0, 4, dtype(), kernel_type()));
  Run([&](Stream& stream) {
    LayerNormForward(stream, x, w, w, 1e-5f, x, none, none);
    LayerNormBackward(stream, x, w, none, none, dy, LayerNormDx::kOverwrite, dy, dw, db, workspace);
  });
  EXPECT_EQ(Get(dw), std::vector<double>(4, 1));
}

TEST_P(LayerNormTest, RefusesWrongArguments) {
  const View x = Output({2, 3}), y = Output({2, 3}), dx = Output({2, 3});
  const View w = Output({3}), b = Output({3}), rows = Output({2}, kF32), rstd = Output({2}, kF32);
  const auto forward = [&](const View& x, const View& w, float eps, const View& y,
                           const View& mean) {
    return [=](Stream& stream) { LayerNormForward(stream, x, w, b, eps, y, mean, rstd); };
  };
  ExpectRefused(forward(w, w, 1e-5f, y, rows), "[layer_norm_forward] x is $T [3]");
  ExpectRefused(forward(x, Output({2}), 1e-5f, y, rows), "w is $T [2], want $T [3]");
  const DType half = OtherHalf();
  ExpectRefused(forward(x, Output({3}, half), 1e-5f, y, rows), "w is " + std::string(Name(half)));
  ExpectRefused(forward(x, w, 1e-5f, Output({2, 3}, half), rows),
                "y is " + std::string(Name(half)));
  ExpectRefused(forward(x, w, 0, y, rows), "eps");
  ExpectRefused(forward(x, w, 1e-5f, Output({3, 2}), rows), "y is $T [3, 2]");
  ExpectRefused(forward(x, w, 1e-5f, y, w), "mean is $T [3]");
  ExpectRefused(forward(Output({2, 0}), Output({0}), 1e-5f, y, rows), "no columns");
  const auto backward = [&](const View& dy, const View& dx, const View& workspace) {
    return [=](Stream& stream) {
      LayerNormBackward(stream, x, w, rows, rstd, dy, LayerNormDx::kOverwrite, dx, w, b, workspace);
    };
  };
  const View workspace = Workspace(LayerNormBackwardWorkspaceBytes(2, 3, dtype(), kernel_type()));
  ExpectRefused(backward(Output({3, 2}), dx, workspace), "[layer_norm_backward] dy");
  ExpectRefused(backward(y, x, workspace), "dx and x overlap");
  ExpectRefused(backward(y, dx, Workspace(4)), "workspace has 4 bytes");
  EXPECT_THROW(LayerNormBackwardWorkspaceBytes(2, 3, DType::kInt32, kernel_type()),
               std::invalid_argument);
  ExpectDTypesRefused("layer_norm_forward", [&](Stream& s) {
    const View x = Output({2, 3}), w = Output({3}), b = Output({3}), y = Output({2, 3});
    LayerNormForward(s, x, w, b, 1e-5f, y, Output({2}, kF32), Output({2}, kF32));
  });
  ExpectDTypesRefused("layer_norm_backward", [&](Stream& s) {
    const View x = Output({2, 3}), w = Output({3}), dy = Output({2, 3}), dx = Output({2, 3});
    const View mean = Output({2}, kF32), rstd = Output({2}, kF32);
    LayerNormBackward(s, x, w, mean, rstd, dy, LayerNormDx::kOverwrite, dx, Output({3}),
                      Output({3}), workspace);
  });
}

TEST_P(LayerNormTest, BitsDoNotDependOnThreads) {
  const int64_t rows = 117, cols = 70;
  const Inputs in({rows, cols, 1e-5f}, dtype());
  const View x = Input({rows, cols}, in.x), w = Input({cols}, in.w), dy = Input(x.shape, in.dy);
  const View y = Output(x.shape), mean = Output({rows}, kF32), rstd = Output({rows}, kF32);
  const View dx = Accumulated(x.shape), dw = Accumulated({cols}), db = Accumulated({cols}, 2);
  const View workspace =
      Workspace(LayerNormBackwardWorkspaceBytes(rows, cols, dtype(), kernel_type()));
  ExpectSameBits(
      [&](Stream& stream) {
        LayerNormForward(stream, x, w, w, 1e-5f, y, mean, rstd);
        LayerNormBackward(stream, x, w, mean, rstd, dy, LayerNormDx::kAdd, dx, dw, db, workspace);
      },
      {y, dx, dw, db});
}

}  // namespace
}  // namespace fsdp
