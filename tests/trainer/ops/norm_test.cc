#include "trainer/ops/norm.h"

#include <algorithm>
#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Case {
  int64_t rows, cols;
  float eps;
};
// One column has no variance: a large eps keeps 1 / sqrt(eps) of order one. 600 rows make 32 blocks
// of sums, 40 make 2.
constexpr Case kCases[] = {{1, 1, 0.25f},  {3, 1, 0.25f},   {1, 7, 1e-5f}, {5, 8, 1e-5f},
                           {3, 33, 1e-5f}, {40, 21, 1e-5f}, {600, 5, 0.1f}};

enum class Kind { kLayerNorm, kRmsNorm };

struct Oracle {
  Values y, mean, r;

  Oracle(Kind kind, const Case& c, const Values& x, const Values& w, const Values& b) {
    const bool layer = kind == Kind::kLayerNorm;
    for (int64_t i = 0; i < c.rows; ++i) {
      const double* row = x.data() + i * c.cols;
      double m = 0, squares = 0;
      for (int64_t j = 0; j < c.cols && layer; ++j) m += row[j] / c.cols;
      for (int64_t j = 0; j < c.cols; ++j) squares += (row[j] - m) * (row[j] - m) / c.cols;
      mean.push_back(m);
      r.push_back(1 / std::sqrt(squares + c.eps));
      for (int64_t j = 0; j < c.cols; ++j) {
        y.push_back(w[j] * (row[j] - m) * r.back() + (layer ? b[j] : 0));
      }
    }
  }
};

struct Inputs {
  Values x, w, b, dy;

  Inputs(const Case& c, DType dtype, DType weights) {
    Random random(42, dtype), parameters(43, weights);
    x = random.Vector(c.rows * c.cols);
    w = parameters.Vector(c.cols);
    b = parameters.Vector(c.cols);
    dy = random.Vector(c.rows * c.cols);
  }
  Inputs(const Case& c, DType dtype) : Inputs(c, dtype, dtype) {}
};

struct Gradients {
  Values dx, dw, db;
};
// dw and db are added to 1.
Gradients Differences(Kind kind, const Case& c, const Inputs& in) {
  Gradients want;
  for (int64_t i = 0; i < c.rows; ++i) {  // Rows do not depend on each other.
    const auto row = [&](const Values& all) {
      return Values(all.begin() + i * c.cols, all.begin() + (i + 1) * c.cols);
    };
    const auto gradient = NumericGradient(
        [&, dy = row(in.dy)](const auto& x) {
          return Dot(dy, Oracle(kind, {1, c.cols, c.eps}, x, in.w, in.b).y);
        },
        row(in.x));
    want.dx.insert(want.dx.end(), gradient.begin(), gradient.end());
  }
  const auto loss = [&](const auto& w, const auto& b) {
    return Dot(in.dy, Oracle(kind, c, in.x, w, b).y);
  };
  want.dw = NumericGradient([&](const auto& v) { return loss(v, in.b); }, in.w);
  want.db = NumericGradient([&](const auto& v) { return loss(in.w, v); }, in.b);
  for (double& d : want.dw) d += 1;
  for (double& d : want.db) d += 1;
  return want;
}

// The cases of both norms. b, mean and db are LayerNorm's alone.
class NormTest : public OpTest {
 protected:
  explicit NormTest(Kind kind) : kind_(kind) {}

  struct Weights {
    View w, b;
  };
  struct Statistics {
    View mean, r;
  };
  struct Sums {
    std::optional<View> dw, db;
  };

  void Forward(Stream& s, const View& x, const Weights& p, float eps, const View& y,
               const Statistics& of) const {
    if (layer()) {
      LayerNormForward(s, x, p.w, p.b, eps, y, of.mean, of.r);
    } else {
      RmsNormForward(s, x, p.w, eps, y, of.r);
    }
  }
  void Backward(Stream& s, const View& x, const Weights& p, const Statistics& of, const View& dy,
                NormDx mode, const View& dx, const Sums& to, const View& workspace) const {
    if (layer()) {
      LayerNormBackward(s, x, p.w, of.mean, of.r, dy, mode, dx, to.dw, to.db, workspace);
    } else {
      RmsNormBackward(s, x, p.w, of.r, dy, mode, dx, to.dw, workspace);
    }
  }
  View WorkspaceOf(int64_t rows, int64_t cols, DType dtype) {
    const auto bytes = layer() ? LayerNormBackwardWorkspaceBytes : RmsNormBackwardWorkspaceBytes;
    return Workspace(bytes(rows, cols, dtype, kernel_type()));
  }
  Statistics NewStatistics(int64_t rows) { return {Output({rows}, kF32), Output({rows}, kF32)}; }
  Oracle OracleOf(const Case& c, const Inputs& in) const {
    return Oracle(kind_, c, in.x, in.w, in.b);
  }

  void ForwardMatchesOracle(const Case& c, DType weights) {
    const Inputs in(c, dtype(), weights);
    const View x = Input({c.rows, c.cols}, in.x), y = Output(x.shape);
    const Weights p{Input({c.cols}, in.w, weights), Input({c.cols}, in.b, weights)};
    const Statistics of = NewStatistics(c.rows);
    Run([&](Stream& stream) { Forward(stream, x, p, c.eps, y, of); });
    const Oracle want = OracleOf(c, in);
    const double tolerance = Tolerance(kF32, c.cols);
    EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), c.cols))) << c.rows << " x " << c.cols;
    if (layer()) {
      EXPECT_TRUE(AllNear(Get(of.mean), want.mean, tolerance));
    }
    EXPECT_TRUE(AllNear(Get(of.r), want.r, tolerance));

    Run([&](Stream& stream) { Forward(stream, x, p, c.eps, x, of); });
    EXPECT_EQ(Get(x), Get(y)) << "in place";
    Clear();
  }
  void ForwardMatchesOracle() {
    for (const Case& c : kCases) {
      for (const DType weights : WeightDTypes()) ForwardMatchesOracle(c, weights);
    }
  }

  void GradientMatchesFiniteDifferences(const Case& c) {
    const Inputs in(c, dtype());
    const Gradients want = Differences(kind_, c, in);
    const Oracle saved = OracleOf(c, in);
    const Shape shape{c.rows, c.cols};
    const View x = Input(shape, in.x), dy = Input(shape, in.dy), dx = Output(shape);
    const Weights p{Input({c.cols}, in.w), {}};
    const Statistics of{Input({c.rows}, saved.mean, kF32), Input({c.rows}, saved.r, kF32)};
    const View dw = Accumulated({c.cols}), db = Accumulated({c.cols});
    const View workspace = WorkspaceOf(c.rows, c.cols, dtype());
    const double sum_tolerance = Tolerance(dtype(), c.rows + c.cols);
    const auto run = [&](NormDx mode, const View& to) {
      Set(dw, Values(c.cols, 1));
      Set(db, Values(c.cols, 1));
      Run([&](Stream& s) { Backward(s, x, p, of, dy, mode, to, {dw, db}, workspace); });
      EXPECT_TRUE(AllNear(Get(dw), want.dw, sum_tolerance));
      if (layer()) {
        EXPECT_TRUE(AllNear(Get(db), want.db, sum_tolerance));
      }
    };
    const double tolerance = Tolerance(dtype(), c.cols);
    run(NormDx::kOverwrite, dx);
    EXPECT_TRUE(AllNear(Get(dx), want.dx, tolerance)) << c.rows << " x " << c.cols;

    const View sum = Accumulated(shape, 3);
    run(NormDx::kAdd, sum);
    Values want_sum = want.dx;
    for (double& d : want_sum) d += 3;
    EXPECT_TRUE(AllNear(Get(sum), want_sum, tolerance));

    const auto frozen = [&](const Sums& sums) {
      Run([&](Stream& s) { Backward(s, x, p, of, dy, NormDx::kOverwrite, sum, sums, workspace); });
      EXPECT_EQ(Get(sum), Get(dx)) << "frozen";
    };
    frozen({});
    if (layer()) {
      Set(db, Values(c.cols, 1));
      frozen({std::nullopt, db});
      EXPECT_TRUE(AllNear(Get(db), want.db, sum_tolerance)) << "without dw";
    }

    run(NormDx::kOverwrite, dy);
    EXPECT_EQ(Get(dy), Get(dx)) << "in place";
    Clear();
  }
  void GradientMatchesFiniteDifferences() {
    for (const Case& c : kCases) GradientMatchesFiniteDifferences(c);
  }

  // Whatever the dtypes of parameters and of their gradients: the bits of fp32, rounded once.
  void IsThatOfFp32RoundedOnce() {
    const Case c{50, 700, 1e-5f};
    const Shape shape{c.rows, c.cols};
    struct Results {
      Values y, dx, added, dw, db;
    };
    for (const DType weights : WeightDTypes()) {
      const Inputs in(c, dtype(), weights);
      const auto run = [&](DType dtype, DType weights, DType gradients) {
        const View x = Input(shape, in.x, dtype), dy = Input(shape, in.dy, dtype);
        const Weights p{Input({c.cols}, in.w, weights), Input({c.cols}, in.b, weights)};
        const Statistics of = NewStatistics(c.rows);
        const View y = Output(shape, dtype), dx = Output(shape, dtype);
        const View added = Accumulated(shape, 3, dtype);
        const View dw = Accumulated({c.cols}, 1, gradients),
                   db = Accumulated({c.cols}, 1, gradients);
        const View workspace = WorkspaceOf(c.rows, c.cols, dtype);
        Run([&](Stream& s) {
          Forward(s, x, p, c.eps, y, of);
          Backward(s, x, p, of, dy, NormDx::kAdd, added, {}, workspace);
          Backward(s, x, p, of, dy, NormDx::kOverwrite, dx, {dw, db}, workspace);
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
  void LongRows(int64_t cols) {
    const Case c{3, cols, 1e-5f};
    const Inputs in(c, dtype());
    const Oracle want = OracleOf(c, in);
    Values want_dx, want_dw(c.cols, 1), want_db(c.cols, 1);
    for (int64_t i = 0; i < c.rows; ++i) {
      const double *x = &in.x[i * c.cols], *dy = &in.dy[i * c.cols];
      const auto xhat = [&](int64_t j) { return (x[j] - want.mean[i]) * want.r[i]; };
      double mean_g = 0, mean_gx = 0;
      for (int64_t j = 0; j < c.cols; ++j) {
        if (layer()) mean_g += in.w[j] * dy[j] / c.cols;
        mean_gx += in.w[j] * dy[j] * xhat(j) / c.cols;
      }
      for (int64_t j = 0; j < c.cols; ++j) {
        want_dx.push_back(want.r[i] * (in.w[j] * dy[j] - mean_g - xhat(j) * mean_gx));
        want_dw[j] += dy[j] * xhat(j);
        want_db[j] += dy[j];
      }
    }
    const View x = Input({c.rows, c.cols}, in.x), dy = Input(x.shape, in.dy), y = Output(x.shape);
    const Weights p{Input({c.cols}, in.w), Input({c.cols}, in.b, kF32)};
    const Statistics of = NewStatistics(c.rows);
    const View dw = Accumulated({c.cols}), db = Accumulated({c.cols});
    const View workspace = WorkspaceOf(c.rows, c.cols, dtype());
    Run([&](Stream& stream) {
      Forward(stream, x, p, c.eps, y, of);
      Backward(stream, x, p, of, dy, NormDx::kOverwrite, dy, {dw, db}, workspace);
    });
    EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), c.cols)));
    EXPECT_TRUE(AllNear(Get(dy), want_dx, Tolerance(dtype(), c.cols)));
    // xhat has the sums of a row.
    EXPECT_TRUE(AllNear(Get(dw), want_dw, Tolerance(dtype(), c.rows + c.cols)));
    if (layer()) {
      EXPECT_TRUE(AllNear(Get(db), want_db, Tolerance(dtype(), c.rows)));
    }
  }

  void NoRows() {
    const View x = Input({0, 4}, {}), dy = Input({0, 4}, {}), w = Input({4}, {1, 1, 1, 1});
    const View none = Input({0}, {}, kF32), dw = Accumulated({4}), db = Accumulated({4});
    const View workspace = WorkspaceOf(0, 4, dtype());
    Run([&](Stream& stream) {
      Forward(stream, x, {w, w}, 1e-5f, x, {none, none});
      Backward(stream, x, {w, w}, {none, none}, dy, NormDx::kOverwrite, dy, {dw, db}, workspace);
    });
    EXPECT_EQ(Get(dw), Values(4, 1));
  }

  void BitsDoNotDependOnThreads() {
    const int64_t rows = 117, cols = 70;
    const Inputs in({rows, cols, 1e-5f}, dtype());
    const View x = Input({rows, cols}, in.x), w = Input({cols}, in.w), dy = Input(x.shape, in.dy);
    const Statistics of = NewStatistics(rows);
    const View y = Output(x.shape), dx = Accumulated(x.shape);
    const View dw = Accumulated({cols}), db = Accumulated({cols}, 2);
    const View workspace = WorkspaceOf(rows, cols, dtype());
    ExpectSameBits(
        [&](Stream& stream) {
          Forward(stream, x, {w, w}, 1e-5f, y, of);
          Backward(stream, x, {w, w}, of, dy, NormDx::kAdd, dx, {dw, db}, workspace);
        },
        {y, dx, dw, db});
  }

 private:
  bool layer() const { return kind_ == Kind::kLayerNorm; }

  const Kind kind_;
};

class LayerNormTest : public NormTest {
 protected:
  LayerNormTest() : NormTest(Kind::kLayerNorm) {}
};
FSDP_INSTANTIATE_OP_TEST(LayerNormTest, kF32, kBF16, kF16);

class RmsNormTest : public NormTest {
 protected:
  RmsNormTest() : NormTest(Kind::kRmsNorm) {}
};
FSDP_INSTANTIATE_OP_TEST(RmsNormTest, kF32, kBF16, kF16);

TEST_P(LayerNormTest, ForwardMatchesOracle) { ForwardMatchesOracle(); }
TEST_P(RmsNormTest, ForwardMatchesOracle) { ForwardMatchesOracle(); }
TEST_P(LayerNormTest, GradientMatchesFiniteDifferences) { GradientMatchesFiniteDifferences(); }
TEST_P(RmsNormTest, GradientMatchesFiniteDifferences) { GradientMatchesFiniteDifferences(); }
TEST_P(LayerNormTest, IsThatOfFp32RoundedOnce) { IsThatOfFp32RoundedOnce(); }
TEST_P(RmsNormTest, IsThatOfFp32RoundedOnce) { IsThatOfFp32RoundedOnce(); }
TEST_P(LayerNormTest, LongRows) { LongRows(4200); }
TEST_P(RmsNormTest, LongRows) { LongRows(8200); }
TEST_P(LayerNormTest, NoRows) { NoRows(); }
TEST_P(RmsNormTest, NoRows) { NoRows(); }
TEST_P(LayerNormTest, BitsDoNotDependOnThreads) { BitsDoNotDependOnThreads(); }
TEST_P(RmsNormTest, BitsDoNotDependOnThreads) { BitsDoNotDependOnThreads(); }

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
  EXPECT_TRUE(AllNear(Get(y), OracleOf(c, in).y, Tolerance(dtype(), 0, std::max(1.0, large))));
}

// Heads 1 and 2 of five: each is a row, or both together are one; the others keep what they hold.
TEST_P(RmsNormTest, HeadsAreRows) {
  const int64_t batch = 2, seq = 3, all = 5, first = 1, count = 2;
  for (const auto& [head, together] : {std::pair(6, false), {16, false}, {6, true}, {16, true}}) {
    const int64_t cols = together ? count * head : head, in_token = together ? 1 : count;
    const Case c{batch * seq * in_token, cols, 1e-5f};
    const Inputs in(c, dtype());
    const Oracle want = OracleOf(c, in);
    const Gradients gradients = Differences(Kind::kRmsNorm, c, in);
    const Shape shape{batch, seq, all, head};
    const auto spread = [&](const Values& rows, double other) {
      Values out(shape.NumElements(), other);
      for (int64_t i = 0; i < c.rows; ++i) {
        const int64_t at = (i / in_token * all + first) * head + i % in_token * cols;
        std::copy_n(rows.begin() + i * cols, cols, out.begin() + at);
      }
      return out;
    };
    const View x = Input(shape, spread(in.x, 0.5)), w = Input({cols}, in.w);
    const View dy = Input(shape, spread(in.dy, 0.25));
    const View y = Accumulated(shape, 7), dx = Accumulated(shape, 8), dw = Accumulated({cols});
    const View r = Output({batch, seq, in_token}, kF32);
    const View workspace = WorkspaceOf(c.rows, cols, dtype());
    const auto heads = [&](const View& view) { return Heads(view, first, count); };
    Run([&](Stream& stream) {
      RmsNormForward(stream, heads(x), w, c.eps, heads(y), r);
      RmsNormBackward(stream, heads(x), w, r, heads(dy), heads(dx), dw, workspace);
    });
    const double tolerance = Tolerance(dtype(), cols);
    EXPECT_TRUE(AllNear(Get(y), spread(want.y, 7), tolerance));
    EXPECT_TRUE(AllNear(Get(r), want.r, Tolerance(kF32, cols)));
    EXPECT_TRUE(AllNear(Get(dx), spread(gradients.dx, 8), tolerance));
    EXPECT_TRUE(AllNear(Get(dw), gradients.dw, Tolerance(dtype(), c.rows + cols)));
    Clear();
  }
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
      LayerNormBackward(stream, x, w, rows, rstd, dy, NormDx::kOverwrite, dx, w, b, workspace);
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
    LayerNormBackward(s, x, w, mean, rstd, dy, NormDx::kOverwrite, dx, Output({3}), Output({3}),
                      workspace);
  });
}

TEST_P(RmsNormTest, RefusesWrongArguments) {
  const View x = Output({2, 3}), y = Output({2, 3}), dx = Output({2, 3});
  const View w = Output({3}), dw = Output({3}), r = Output({2}, kF32);
  const auto forward = [&](const View& x, const View& w, float eps, const View& y, const View& r) {
    return [=](Stream& stream) { RmsNormForward(stream, x, w, eps, y, r); };
  };
  ExpectRefused(forward(w, w, 1e-5f, y, r), "[rms_norm_forward] x is $T [3]");
  ExpectRefused(forward(x, Output({2}), 1e-5f, y, r), "w is $T [2], want $T [3]");
  const DType half = OtherHalf();
  ExpectRefused(forward(x, Output({3}, half), 1e-5f, y, r), "w is " + std::string(Name(half)));
  ExpectRefused(forward(x, w, 1e-5f, Output({2, 3}, half), r), "y is " + std::string(Name(half)));
  ExpectRefused(forward(x, w, -1, y, r), "eps");
  ExpectRefused(forward(x, w, 1e-5f, Output({3, 2}), r), "y is $T [3, 2]");
  ExpectRefused(forward(x, w, 1e-5f, y, w), "r is $T [3], want fp32 [2]");
  ExpectRefused(forward(Output({2, 0}), Output({0}), 1e-5f, y, r), "no columns");
  const View inside(y.data, kF32, {2});
  ExpectRefused(forward(x, w, 1e-5f, y, inside), "r and y overlap");
  const auto backward = [&](const View& dy, const View& dx, const View& workspace) {
    return [=](Stream& stream) {
      RmsNormBackward(stream, x, w, r, dy, NormDx::kOverwrite, dx, dw, workspace);
    };
  };
  const View workspace = Workspace(RmsNormBackwardWorkspaceBytes(2, 3, dtype(), kernel_type()));
  ExpectRefused(backward(Output({3, 2}), dx, workspace), "[rms_norm_backward] dy");
  ExpectRefused(backward(y, x, workspace), "dx and x overlap");
  ExpectRefused(backward(y, dx, Workspace(4)), "workspace has 4 bytes");
  EXPECT_THROW(RmsNormBackwardWorkspaceBytes(2, 3, DType::kInt32, kernel_type()),
               std::invalid_argument);

  const View heads = Output({1, 2, 4, 3}), head_r = Output({1, 2, 2}, kF32);
  const auto on_heads = [&](const Heads& x, const Heads& y, const View& r) {
    return [=](Stream& stream) { RmsNormForward(stream, x, w, 1e-5f, y, r); };
  };
  ExpectRefused(on_heads({heads, 3, 2}, {heads, 0, 2}, head_r),
                "x is heads 3 to 5 of [1, 2, 4, 3]");
  ExpectRefused(on_heads({heads, 0, 2}, {heads, 0, 1}, head_r), "y has 1 heads, want 2");
  ExpectRefused(on_heads({heads, 0, 2}, {heads, 0, 2}, Output({1, 2, 4}, kF32)),
                "r is fp32 [1, 2, 4]");
  ExpectDTypesRefused("rms_norm_forward", [&](Stream& s) {
    RmsNormForward(s, Output({2, 3}), Output({3}), 1e-5f, Output({2, 3}), Output({2}, kF32));
  });
  ExpectDTypesRefused("rms_norm_backward", [&](Stream& s) {
    const View x = Output({2, 3}), dy = Output({2, 3}), dx = Output({2, 3}), r = Output({2}, kF32);
    RmsNormBackward(s, x, Output({3}), r, dy, NormDx::kOverwrite, dx, Output({3}), workspace);
  });
  const auto some = [&] { return Heads(Output({1, 2, 4, 3}), 0, 2); };
  ExpectDTypesRefused("rms_norm_forward", [&](Stream& s) {
    RmsNormForward(s, some(), Output({3}), 1e-5f, some(), Output({1, 2, 2}, kF32));
  });
  ExpectDTypesRefused("rms_norm_backward", [&](Stream& s) {
    const View r = Output({1, 2, 2}, kF32);
    RmsNormBackward(s, some(), Output({3}), r, some(), some(), Output({3}), workspace);
  });
}

}  // namespace
}  // namespace fsdp
