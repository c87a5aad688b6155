#include "trainer/ops/rms_norm.h"

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
// 600 rows make 32 blocks of sums, 40 make 2.
constexpr Case kCases[] = {{1, 1, 0.25f},  {3, 1, 0.25f},   {1, 7, 1e-5f}, {5, 8, 1e-5f},
                           {3, 33, 1e-5f}, {40, 21, 1e-5f}, {600, 5, 0.1f}};

struct Oracle {
  Values y, r;

  Oracle(const Case& c, const Values& x, const Values& w) {
    for (int64_t i = 0; i < c.rows; ++i) {
      const double* row = x.data() + i * c.cols;
      double squares = 0;
      for (int64_t j = 0; j < c.cols; ++j) squares += row[j] * row[j] / c.cols;
      r.push_back(1 / std::sqrt(squares + c.eps));
      for (int64_t j = 0; j < c.cols; ++j) y.push_back(w[j] * row[j] * r.back());
    }
  }
};

struct Inputs {
  Values x, w, dy;

  Inputs(const Case& c, DType dtype, DType weights) {
    Random random(42, dtype);
    x = random.Vector(c.rows * c.cols);
    w = Random(43, weights).Vector(c.cols);
    dy = random.Vector(c.rows * c.cols);
  }
  Inputs(const Case& c, DType dtype) : Inputs(c, dtype, dtype) {}
};

struct Gradients {
  Values dx, dw;
};
Gradients Differences(const Case& c, const Inputs& in) {
  Gradients want;  // dx row by row: rows do not depend on each other.
  for (int64_t i = 0; i < c.rows; ++i) {
    const auto row = [&](const Values& all) {
      return Values(all.begin() + i * c.cols, all.begin() + (i + 1) * c.cols);
    };
    const auto gradient = NumericGradient(
        [&, dy = row(in.dy)](const auto& x) {
          return Dot(dy, Oracle({1, c.cols, c.eps}, x, in.w).y);
        },
        row(in.x));
    want.dx.insert(want.dx.end(), gradient.begin(), gradient.end());
  }
  want.dw = NumericGradient([&](const auto& v) { return Dot(in.dy, Oracle(c, in.x, v).y); }, in.w);
  for (double& d : want.dw) d += 1;
  return want;
}

class RmsNormTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(RmsNormTest, kF32, kBF16, kF16);

TEST_P(RmsNormTest, ForwardMatchesOracle) {
  const auto run = [&](const Case& c, DType weights) {
    const Inputs in(c, dtype(), weights);
    const View x = Input({c.rows, c.cols}, in.x), w = Input({c.cols}, in.w, weights);
    const View y = Output({c.rows, c.cols}), r = Output({c.rows}, kF32);
    Run([&](Stream& stream) { RmsNormForward(stream, x, w, c.eps, y, r); });
    const Oracle want(c, in.x, in.w);
    const double tolerance = Tolerance(dtype(), c.cols);
    EXPECT_TRUE(AllNear(Get(y), want.y, tolerance)) << c.rows << " x " << c.cols;
    EXPECT_TRUE(AllNear(Get(r), want.r, Tolerance(kF32, c.cols)));

    Run([&](Stream& stream) { RmsNormForward(stream, x, w, c.eps, x, r); });
    EXPECT_EQ(Get(x), Get(y)) << "in place";
    Clear();
  };
  for (const Case& c : kCases) {
    for (const DType weights : WeightDTypes()) run(c, weights);
  }
}

TEST_P(RmsNormTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    const Inputs in(c, dtype());
    const Gradients want = Differences(c, in);
    const Shape shape{c.rows, c.cols};
    const View x = Input(shape, in.x), w = Input({c.cols}, in.w), dy = Input(shape, in.dy);
    const View r = Input({c.rows}, Oracle(c, in.x, in.w).r, kF32);
    const View dx = Output(shape), dw = Accumulated({c.cols});
    const View workspace =
        Workspace(RmsNormBackwardWorkspaceBytes(c.rows, c.cols, dtype(), kernel_type()));
    const auto run = [&](RmsNormDx mode, const View& to) {
      Set(dw, Values(c.cols, 1));
      Run([&](Stream& stream) { RmsNormBackward(stream, x, w, r, dy, mode, to, dw, workspace); });
      EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(dtype(), c.rows + c.cols)));
    };
    const double tolerance = Tolerance(dtype(), c.cols);
    run(RmsNormDx::kOverwrite, dx);
    EXPECT_TRUE(AllNear(Get(dx), want.dx, tolerance)) << c.rows << " x " << c.cols;

    const View sum = Accumulated(shape, 3);
    run(RmsNormDx::kAdd, sum);
    auto want_sum = want.dx;
    for (double& d : want_sum) d += 3;
    EXPECT_TRUE(AllNear(Get(sum), want_sum, tolerance));

    const Values trained = Get(dx);
    Run([&](Stream& stream) {
      RmsNormBackward(stream, x, w, r, dy, RmsNormDx::kOverwrite, dx, std::nullopt, workspace);
    });
    EXPECT_EQ(Get(dx), trained) << "frozen";

    run(RmsNormDx::kOverwrite, dy);
    EXPECT_EQ(Get(dy), Get(dx)) << "in place";
    Clear();
  }
}

// Whatever the dtypes of the parameter and of its gradient: the bits of fp32, rounded once.
TEST_P(RmsNormTest, IsThatOfFp32RoundedOnce) {
  const Case c{50, 700, 1e-5f};
  const Shape shape{c.rows, c.cols};
  struct Results {
    Values y, dx, added, dw;
  };
  for (const DType weights : WeightDTypes()) {
    const Inputs in(c, dtype(), weights);
    const auto run = [&](DType dtype, DType weights, DType gradients) {
      const View x = Input(shape, in.x, dtype), dy = Input(shape, in.dy, dtype);
      const View w = Input({c.cols}, in.w, weights), r = Output({c.rows}, kF32);
      const View y = Output(shape, dtype), dx = Output(shape, dtype);
      const View added = Accumulated(shape, 3, dtype), dw = Accumulated({c.cols}, 1, gradients);
      const View workspace =
          Workspace(RmsNormBackwardWorkspaceBytes(c.rows, c.cols, dtype, kernel_type()));
      Run([&](Stream& s) {
        RmsNormForward(s, x, w, c.eps, y, r);
        RmsNormBackward(s, x, w, r, dy, RmsNormDx::kAdd, added, std::nullopt, workspace);
        RmsNormBackward(s, x, w, r, dy, RmsNormDx::kOverwrite, dx, dw, workspace);
      });
      return Results{Get(y), Get(dx), Get(added), Get(dw)};
    };
    const Results want = run(kF32, kF32, kF32);
    for (const DType gradients : {kF32, kBF16, kF16}) {
      const Results got = run(dtype(), weights, gradients);
      EXPECT_EQ(got.y, RoundTo(dtype(), want.y));
      EXPECT_EQ(got.dx, RoundTo(dtype(), want.dx));
      EXPECT_EQ(got.added, RoundTo(dtype(), want.added));
      EXPECT_EQ(got.dw, RoundTo(gradients, want.dw));
      Clear();
    }
  }
}

// More columns than the threads of a row hold.
TEST_P(RmsNormTest, LongRows) {
  const Case c{3, 8200, 1e-5f};
  const Inputs in(c, dtype());
  const Oracle want(c, in.x, in.w);
  Values want_dx, want_dw(c.cols, 1);
  for (int64_t i = 0; i < c.rows; ++i) {
    const double *x = &in.x[i * c.cols], *dy = &in.dy[i * c.cols], r = want.r[i];
    double mean = 0;
    for (int64_t j = 0; j < c.cols; ++j) mean += in.w[j] * dy[j] * x[j] * r / c.cols;
    for (int64_t j = 0; j < c.cols; ++j) {
      want_dx.push_back(r * (in.w[j] * dy[j] - x[j] * r * mean));
      want_dw[j] += dy[j] * x[j] * r;
    }
  }
  const View x = Input({c.rows, c.cols}, in.x), w = Input({c.cols}, in.w);
  const View y = Output(x.shape), r = Output({c.rows}, kF32);
  const View dy = Input(x.shape, in.dy), dw = Accumulated({c.cols});
  const View workspace =
      Workspace(RmsNormBackwardWorkspaceBytes(c.rows, c.cols, dtype(), kernel_type()));
  Run([&](Stream& stream) {
    RmsNormForward(stream, x, w, c.eps, y, r);
    RmsNormBackward(stream, x, w, r, dy, RmsNormDx::kOverwrite, dy, dw, workspace);
  });
  EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), c.cols)));
  EXPECT_TRUE(AllNear(Get(dy), want_dx, Tolerance(dtype(), c.cols)));
  // xhat has the sums of a row.
  EXPECT_TRUE(AllNear(Get(dw), want_dw, Tolerance(dtype(), c.rows + c.cols)));
}

// Heads 1 and 2 of five: each is a row, and the others keep what they hold.
TEST_P(RmsNormTest, HeadsAreRows) {
  const int64_t batch = 2, seq = 3, all = 5, first = 1, count = 2;
  for (const int64_t cols : {6, 16}) {
    const Case c{batch * seq * count, cols, 1e-5f};
    const Inputs in(c, dtype());
    const Oracle want(c, in.x, in.w);
    const Gradients gradients = Differences(c, in);
    const Shape shape{batch, seq, all, cols};
    const auto spread = [&](const Values& rows, double other) {
      Values out(shape.NumElements(), other);
      for (int64_t i = 0; i < c.rows; ++i) {
        const int64_t at = (i / count * all + first + i % count) * cols;
        std::copy_n(rows.begin() + i * cols, cols, out.begin() + at);
      }
      return out;
    };
    const View x = Input(shape, spread(in.x, 0.5)), w = Input({cols}, in.w);
    const View dy = Input(shape, spread(in.dy, 0.25));
    const View y = Accumulated(shape, 7), dx = Accumulated(shape, 8), dw = Accumulated({cols});
    const View r = Output({batch, seq, count}, kF32);
    const View workspace =
        Workspace(RmsNormBackwardWorkspaceBytes(c.rows, cols, dtype(), kernel_type()));
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

TEST_P(RmsNormTest, NoRows) {
  const View x = Input({0, 4}, {}), dy = Input({0, 4}, {}), w = Input({4}, {1, 1, 1, 1});
  const View none = Input({0}, {}, kF32), dw = Accumulated({4});
  const View workspace = Workspace(RmsNormBackwardWorkspaceBytes(0, 4, dtype(), kernel_type()));
  Run([&](Stream& stream) {
    RmsNormForward(stream, x, w, 1e-5f, x, none);
    RmsNormBackward(stream, x, w, none, dy, RmsNormDx::kOverwrite, dy, dw, workspace);
  });
  EXPECT_EQ(Get(dw), Values(4, 1));
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
      RmsNormBackward(stream, x, w, r, dy, RmsNormDx::kOverwrite, dx, dw, workspace);
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
    RmsNormBackward(s, x, Output({3}), r, dy, RmsNormDx::kOverwrite, dx, Output({3}), workspace);
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

TEST_P(RmsNormTest, BitsDoNotDependOnThreads) {
  const int64_t rows = 117, cols = 70;
  const Inputs in({rows, cols, 1e-5f}, dtype());
  const View x = Input({rows, cols}, in.x), w = Input({cols}, in.w), dy = Input(x.shape, in.dy);
  const View y = Output(x.shape), r = Output({rows}, kF32);
  const View dx = Accumulated(x.shape), dw = Accumulated({cols});
  const View workspace =
      Workspace(RmsNormBackwardWorkspaceBytes(rows, cols, dtype(), kernel_type()));
  ExpectSameBits(
      [&](Stream& stream) {
        RmsNormForward(stream, x, w, 1e-5f, y, r);
        RmsNormBackward(stream, x, w, r, dy, RmsNormDx::kAdd, dx, dw, workspace);
      },
      {y, dx, dw});
}

}  // namespace
}  // namespace fsdp
