#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/ops/logit_loss.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"loss_terms"});

using Values = std::vector<double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  int64_t rows;
  float scale;
  Values z, targets, weights;
};

// Targets of a half are 0 or 1. A third of the rows has weight zero, and then a logit and a target
// that are none.
Problem MakeProblem(DType dtype, uint64_t seed, int64_t rows, float scale) {
  Random random(seed, dtype), floats(seed, kF32);
  Problem p{rows, scale, random.Vector(rows, -6, 6), floats.Vector(rows, 0, 1),
            floats.Vector(rows, 0.5, 1.5)};
  const double large = Largest(dtype);
  const Values bad = {large, -large, kInfinity, -kInfinity, NAN};
  for (int64_t i = 0; i < rows; i += 2) p.targets[i] = std::round(p.targets[i]);
  for (int64_t i = 1; i < rows; i += 3) {
    p.weights[i] = 0;
    p.z[i] = bad[i % std::ssize(bad)], p.targets[i] = bad[(i + 1) % std::ssize(bad)];
  }
  return p;
}

struct Results {
  double loss = 0;
  Values dz;
};

Results Oracle(const Problem& p) {
  Results out{0, Values(p.z.size())};
  for (int64_t i = 0; i < p.rows; ++i) {
    if (p.weights[i] == 0) continue;
    const double z = p.z[i], t = p.targets[i], factor = p.scale * p.weights[i];
    out.loss += factor * (std::max(z, 0.0) - z * t + std::log1p(std::exp(-std::abs(z))));
    out.dz[i] = factor * (1 / (1 + std::exp(-z)) - t);
  }
  return out;
}

class BinaryLossTest : public OpTest {
 protected:
  static constexpr double kBefore = 0.5;

  void Upload(const Problem& p) {
    Clear();
    z_ = Input({p.rows}, p.z);
    targets_ = Input({p.rows}, p.targets, kF32);
    weights_ = Input({p.rows}, p.weights, kF32);
    loss_ = Accumulated({1}, kBefore, kF32);
    workspace_ = Workspace(BinaryLossWorkspaceBytes(p.rows));
    dz_ = Output(z_.shape);
  }
  double Forward(const Problem& p) {
    Upload(p);
    Run([&](Stream& s) {
      BinaryLossForward(s, z_, targets_, weights_, p.scale, loss_, workspace_);
    });
    return Get(loss_)[0] - kBefore;
  }
  Results ForwardBackward(const Problem& p, double loss_scale = 0) {
    Upload(p);
    std::optional<ConstView> scale;
    if (loss_scale > 0) scale = Input({1}, {loss_scale}, kF32);
    Run([&](Stream& s) {
      BinaryLossForwardBackward(s, z_, targets_, weights_, p.scale, scale, loss_, dz_, workspace_);
    });
    return {Get(loss_)[0] - kBefore, Get(dz_)};
  }
  // A term is fp32, its sum is not: terms are not those of a sum.
  void ExpectNear(const Results& got, const Results& want) const {
    EXPECT_TRUE(AllNear({got.loss}, {want.loss}, Tolerance(kF32, 1)));
    EXPECT_TRUE(AllNear(got.dz, want.dz, Tolerance(dtype(), 1)));
  }

  View z_, targets_, weights_, loss_, workspace_, dz_;
};
FSDP_INSTANTIATE_OP_TEST(BinaryLossTest, kF32, kBF16, kF16);

TEST_P(BinaryLossTest, GradientMatchesFiniteDifferences) {
  const Problem p = MakeProblem(dtype(), 1, 23, /*scale=*/0.75);
  Results want = Oracle(p);
  want.dz = NumericGradient(
      [&](const Values& v) {
        Problem q = p;
        q.z = v;
        return Oracle(q).loss;
      },
      p.z);
  ExpectNear(ForwardBackward(p), want);
}

// Groups of 256 rows, the last one short.
TEST_P(BinaryLossTest, MatchesOracle) {
  for (const int64_t rows : {0, 1, 7, 255, 256, 257, 1003}) {
    SCOPED_TRACE(rows);
    const Problem p = MakeProblem(dtype(), rows + 2, rows, 1);
    const Results want = Oracle(p), got = ForwardBackward(p);
    EXPECT_EQ(cost().flops, 40.0 * static_cast<double>(rows));
    ExpectNear(got, want);
    for (int64_t i = 0; i < rows; ++i) {
      if (p.weights[i] != 0) continue;
      EXPECT_EQ(got.dz[i], 0) << i;
    }
    EXPECT_EQ(Forward(p), got.loss) << "alone";
  }
}

// 1 - s would be 0 from 17 up, and log(1 + e) from the same size.
TEST_P(BinaryLossTest, KeepsTheDigitsOfItsTail) {
  const double far = dtype() == kF16 ? 9 : 60;  // The tail is a normal number there.
  const Problem p{4, 1, {far, -far, -far, far}, {1, 0, 1, 0}, {1, 1, 1, 1}};
  const Results got = ForwardBackward(p);
  const double tail = std::exp(-far) / (1 + std::exp(-far));
  EXPECT_TRUE(AllNear({got.dz[0] / -tail, got.dz[1] / tail}, {1, 1}, Tolerance(dtype(), 1)));
  EXPECT_EQ(got.dz[2], RoundTo(dtype(), tail - 1));
  EXPECT_EQ(got.dz[3], RoundTo(dtype(), 1 - tail));
  const float scale = std::ldexp(1.0f, 90);
  const double alone = Forward({1, scale, {far}, {1}, {1}}) / (scale * std::log1p(std::exp(-far)));
  EXPECT_NEAR(alone, 1, Tolerance(kF32, 1));
}

// A power of two, so that rounding is the same.
TEST_P(BinaryLossTest, TheLossScaleIsOfGradientsAlone) {
  Problem p = MakeProblem(dtype(), 5, 300, 0.25f);
  const Results plain = ForwardBackward(p), scaled = ForwardBackward(p, 8);
  EXPECT_EQ(scaled.loss, plain.loss);
  p.scale *= 8;
  EXPECT_EQ(scaled.dz, ForwardBackward(p).dz);
  EXPECT_NE(scaled.dz, plain.dz);
}

TEST_P(BinaryLossTest, GradientsMayTakeTheLogitsPlace) {
  const Problem p = MakeProblem(dtype(), 6, 301, 1);
  const Results want = ForwardBackward(p);
  Upload(p);
  Run([&](Stream& s) {
    BinaryLossForwardBackward(s, z_, targets_, weights_, p.scale, std::nullopt, loss_, z_,
                              workspace_);
  });
  EXPECT_EQ(Get(z_), want.dz);
  EXPECT_EQ(Get(loss_)[0] - kBefore, want.loss);
}

TEST_P(BinaryLossTest, InfinityAndNaN) {
  const auto run = [&](double z, double t) {
    return ForwardBackward({3, 1, {1, z, -1}, {1, t, 0}, {1, 1, 1}});
  };
  for (const double t : {0.0, 0.25, 1.0}) {
    const Results nan = run(NAN, t);
    EXPECT_TRUE(std::isnan(nan.loss));
    EXPECT_TRUE(std::isnan(nan.dz[1]));
    EXPECT_FALSE(std::isnan(nan.dz[0]) || std::isnan(nan.dz[2]));
    EXPECT_FALSE(std::isfinite(run(kInfinity, t).loss));
    EXPECT_FALSE(std::isfinite(run(-kInfinity, t).loss));
    EXPECT_EQ(run(kInfinity, t).dz[1], 1 - t);
    EXPECT_EQ(run(-kInfinity, t).dz[1], -t);
    EXPECT_EQ(run(Largest(dtype()), t).dz[1], 1 - t);
    EXPECT_EQ(run(-Largest(dtype()), t).dz[1], -t);
  }
}

TEST_P(BinaryLossTest, TensorsBeginAnywhere) {
  const Problem p = MakeProblem(dtype(), 9, 261, 1);
  const Results want = ForwardBackward(p);
  Upload(p);
  const View all = Output({p.rows + 3}), all_dz = Output({p.rows + 3});
  Set(all.Slice(1, p.rows), p.z);
  Run([&](Stream& s) {
    BinaryLossForwardBackward(s, all.Slice(1, p.rows), targets_, weights_, p.scale, std::nullopt,
                              loss_, all_dz.Slice(2, p.rows), workspace_);
  });
  EXPECT_EQ(Get(all_dz.Slice(2, p.rows)), want.dz);
  EXPECT_EQ(Get(loss_)[0] - kBefore, want.loss);
  for (const int64_t i : {int64_t{0}, int64_t{1}, p.rows + 2}) {
    EXPECT_TRUE(std::isnan(Get(all_dz)[i])) << i << " is not its own";
  }
}

TEST_P(BinaryLossTest, BitsDoNotDependOnThreads) {
  const Problem p = MakeProblem(dtype(), 10, 5003, 1.0f / 64);
  Upload(p);
  ExpectSameBits(
      [&](Stream& s) {
        BinaryLossForwardBackward(s, z_, targets_, weights_, p.scale, std::nullopt, loss_, dz_,
                                  workspace_);
      },
      {loss_, dz_});
}

TEST_P(BinaryLossTest, SumsTargets) {
  for (const int64_t rows : {0, 1, 7, 255, 256, 257, 1003}) {
    SCOPED_TRACE(rows);
    Problem p = MakeProblem(dtype(), rows + 2, rows, 1);
    const auto expect_sum = [&](double relative) {
      double want = 0;
      for (int64_t i = 0; i < rows; ++i) {
        if (p.weights[i] != 0) want += p.weights[i] * p.targets[i];
      }
      Upload(p);
      Run([&](Stream& s) { SumOfTargets(s, targets_, weights_, loss_, workspace_); });
      EXPECT_NEAR(Get(loss_)[0] - kBefore, want, relative * std::max(1.0, want));
      EXPECT_EQ(cost().flops, 2.0 * static_cast<double>(rows));
    };
    expect_sum(Tolerance(kF32, 1));
    for (double& weight : p.weights) weight = weight != 0;
    for (double& target : p.targets) target = target > 0.5;
    expect_sum(0);
  }
}

TEST_P(BinaryLossTest, RefusesWrongArguments) {
  Upload(MakeProblem(dtype(), 11, 300, 1));
  const auto refused = [&](View z, View targets, View loss, View dz, View workspace,
                           const std::string& message) {
    ExpectRefused(
        [=, this](Stream& s) {
          BinaryLossForwardBackward(s, z, targets, weights_, 1, std::nullopt, loss, dz, workspace);
        },
        "[binary_loss_forward_backward] " + message);
  };
  refused(z_.Reshape({300, 1}), targets_, loss_, dz_, workspace_, "z is $T [300, 1]");
  refused(z_, targets_.Slice(0, 7), loss_, dz_, workspace_, "targets is fp32 [7], want fp32 [300]");
  refused(z_, targets_, targets_, dz_, workspace_, "loss is fp32 [300], want fp32 [1]");
  refused(z_, targets_, loss_, dz_.Slice(0, 299), workspace_, "dz is $T [299], want $T [300]");
  refused(z_, targets_, loss_, dz_, workspace_.Slice(0, 8), "workspace has 8 bytes, want >= 16");
  refused(z_, targets_, targets_.Slice(0, 1), dz_, workspace_, "loss and targets overlap");
  const auto no_sum = [&](View targets, View weights, View sum, View workspace,
                          const std::string& message) {
    ExpectRefused([=](Stream& s) { SumOfTargets(s, targets, weights, sum, workspace); },
                  "[sum_of_targets] " + message);
  };
  no_sum(targets_.Reshape({300, 1}), weights_, loss_, workspace_, "targets is fp32 [300, 1]");
  no_sum(targets_, weights_.Slice(0, 7), loss_, workspace_, "weights is fp32 [7], want fp32 [300]");
  no_sum(targets_, weights_, weights_, workspace_, "sum is fp32 [300], want fp32 [1]");
  no_sum(targets_, weights_, weights_.Slice(0, 1), workspace_, "sum and weights overlap");
  no_sum(targets_, weights_, loss_, workspace_.Slice(0, 8), "workspace has 8 bytes, want >= 16");
  ExpectDTypesRefused("sum_of_targets", [&](Stream& s) {
    const View targets = Output({4}, kF32), weights = Output({4}, kF32), sum = Output({1}, kF32);
    SumOfTargets(s, targets, weights, sum, workspace_);
  });
  const auto call = [&](Stream& s, bool gradients) {
    const View z = Output({4}), targets = Output({4}, kF32), weights = Output({4}, kF32);
    const View loss = Output({1}, kF32);
    if (!gradients) return BinaryLossForward(s, z, targets, weights, 1, loss, workspace_);
    const View scale = Output({1}, kF32);
    BinaryLossForwardBackward(s, z, targets, weights, 1, scale, loss, Output({4}), workspace_);
  };
  ExpectDTypesRefused("binary_loss_forward", [&](Stream& s) { call(s, false); });
  ExpectDTypesRefused("binary_loss_forward_backward", [&](Stream& s) { call(s, true); });
}

}  // namespace
}  // namespace fsdp
