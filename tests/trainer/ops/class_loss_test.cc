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
  int64_t rows, classes;
  float scale;
  Values z, targets, weights;
};

// A third of the rows has weight zero, and then a target that no class has.
Problem MakeProblem(DType dtype, uint64_t seed, int64_t rows, int64_t classes, float scale) {
  Random random(seed, dtype);
  Problem p{rows,
            classes,
            scale,
            random.Vector(rows * classes, -4, 4),
            random.Integers(rows, classes),
            Random(seed, kF32).Vector(rows, 0.5, 1.5)};
  for (int64_t i = 1; i < rows; i += 3) p.weights[i] = 0, p.targets[i] = -100;
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
    const double* const z = p.z.data() + i * p.classes;
    const auto target = static_cast<int64_t>(p.targets[i]);
    double max = -kInfinity, sum = 0;
    for (int64_t v = 0; v < p.classes; ++v) max = std::max(max, z[v]);
    for (int64_t v = 0; v < p.classes; ++v) sum += std::exp(z[v] - max);
    const double factor = p.scale * p.weights[i];
    out.loss += factor * (std::log(sum) + max - z[target]);
    for (int64_t v = 0; v < p.classes; ++v) {
      out.dz[i * p.classes + v] = factor * (std::exp(z[v] - max) / sum - (v == target));
    }
  }
  return out;
}

double CorrectOracle(const Problem& p) {
  double correct = 0;
  for (int64_t i = 0; i < p.rows; ++i) {
    if (p.weights[i] == 0) continue;
    const double* const z = p.z.data() + i * p.classes;
    bool has_nan = false;
    int64_t first = 0;
    for (int64_t v = 0; v < p.classes; ++v) {
      has_nan |= std::isnan(z[v]);
      if (z[v] > z[first]) first = v;
    }
    if (!has_nan && first == static_cast<int64_t>(p.targets[i])) correct += p.weights[i];
  }
  return correct;
}

class ClassLossTest : public OpTest {
 protected:
  static constexpr double kBefore = 0.5;

  void Upload(const Problem& p) {
    Clear();
    z_ = Input({p.rows, p.classes}, p.z);
    targets_ = Input({p.rows}, p.targets, DType::kInt32);
    weights_ = Input({p.rows}, p.weights, kF32);
    loss_ = Accumulated({1}, kBefore, kF32);
    workspace_ = Workspace(ClassLossWorkspaceBytes(p.rows));
    dz_ = Output(z_.shape);
  }
  double Forward(const Problem& p) {
    Upload(p);
    Run([&](Stream& s) {
      ClassLossForward(s, z_, targets_, weights_, p.scale, loss_, workspace_);
    });
    return Get(loss_)[0] - kBefore;
  }
  Results ForwardBackward(const Problem& p, double loss_scale = 0) {
    Upload(p);
    std::optional<ConstView> scale;
    if (loss_scale > 0) scale = Input({1}, {loss_scale}, kF32);
    Run([&](Stream& s) {
      ClassLossForwardBackward(s, z_, targets_, weights_, p.scale, scale, loss_, dz_, workspace_);
    });
    return {Get(loss_)[0] - kBefore, Get(dz_)};
  }
  double Correct(const Problem& p) {
    Upload(p);
    Run([&](Stream& s) { CountCorrectClasses(s, z_, targets_, weights_, loss_, workspace_); });
    return Get(loss_)[0] - kBefore;
  }
  void ExpectNear(const Results& got, const Results& want, const Problem& p) const {
    EXPECT_TRUE(AllNear({got.loss}, {want.loss}, Tolerance(kF32, p.classes)));
    EXPECT_TRUE(AllNear(got.dz, want.dz, Tolerance(dtype(), p.classes)));
  }

  View z_, targets_, weights_, loss_, workspace_, dz_;
};
FSDP_INSTANTIATE_OP_TEST(ClassLossTest, kF32, kBF16, kF16);

TEST_P(ClassLossTest, GradientMatchesFiniteDifferences) {
  const Problem p = MakeProblem(dtype(), 1, 7, 11, /*scale=*/0.75);
  Results want = Oracle(p);
  want.dz = NumericGradient(
      [&](const Values& v) {
        Problem q = p;
        q.z = v;
        return Oracle(q).loss;
      },
      p.z);
  ExpectNear(ForwardBackward(p), want, p);
}

TEST_P(ClassLossTest, MatchesOracle) {
  for (const Problem& p : {MakeProblem(dtype(), 2, 0, 5, 1), MakeProblem(dtype(), 3, 1, 1000, 1),
                           MakeProblem(dtype(), 4, 5, 1, 1), MakeProblem(dtype(), 5, 37, 2, 1),
                           MakeProblem(dtype(), 6, 3, 64, 0.5), MakeProblem(dtype(), 7, 29, 131, 1),
                           MakeProblem(dtype(), 8, 2, 9001, 1)}) {
    SCOPED_TRACE(std::to_string(p.rows) + " x " + std::to_string(p.classes));
    const Results want = Oracle(p), got = ForwardBackward(p);
    EXPECT_EQ(cost().flops, 4.0 * static_cast<double>(p.rows * p.classes));
    ExpectNear(got, want, p);
    EXPECT_EQ(Forward(p), got.loss) << "alone";
    EXPECT_EQ(cost().flops, 4.0 * static_cast<double>(p.rows * p.classes));
  }
}

// A power of two, so that rounding is the same.
TEST_P(ClassLossTest, TheLossScaleIsOfGradientsAlone) {
  Problem p = MakeProblem(dtype(), 5, 40, 33, 0.25f);
  const Results plain = ForwardBackward(p), scaled = ForwardBackward(p, 8);
  EXPECT_EQ(scaled.loss, plain.loss);
  p.scale *= 8;
  EXPECT_EQ(scaled.dz, ForwardBackward(p).dz);
  EXPECT_NE(scaled.dz, plain.dz);
}

TEST_P(ClassLossTest, GradientsMayTakeTheLogitsPlace) {
  for (const int64_t classes : {7, 64, 3001}) {
    const Problem p = MakeProblem(dtype(), 6, 5, classes, 1);
    const Results want = ForwardBackward(p);
    Upload(p);
    Run([&](Stream& s) {
      ClassLossForwardBackward(s, z_, targets_, weights_, p.scale, std::nullopt, loss_, z_,
                               workspace_);
    });
    EXPECT_EQ(Get(z_), want.dz);
    EXPECT_EQ(Get(loss_)[0] - kBefore, want.loss);
  }
}

TEST_P(ClassLossTest, RowsOfWeightZeroTakeNoPart) {
  Problem p = MakeProblem(dtype(), 8, 31, 67, 1);
  const double large = Largest(dtype());
  const Values bad = {large, -large, kInfinity, -kInfinity, NAN};
  Problem fewer = p;
  fewer.rows = 0;
  fewer.z.clear(), fewer.targets.clear(), fewer.weights.clear();
  for (int64_t i = 0; i < p.rows; ++i) {
    const auto row = p.z.begin() + i * p.classes;
    if (p.weights[i] == 0) {
      for (int64_t v = 0; v < p.classes; ++v) row[v] = bad[(i + v) % std::ssize(bad)];
      continue;
    }
    ++fewer.rows;
    fewer.z.insert(fewer.z.end(), row, row + p.classes);
    fewer.targets.push_back(p.targets[i]);
    fewer.weights.push_back(p.weights[i]);
  }
  const Results got = ForwardBackward(p), want = ForwardBackward(fewer);
  EXPECT_TRUE(AllNear({got.loss}, {want.loss}, Tolerance(kF32, 1)));
  for (int64_t i = 0, next = 0; i < p.rows; ++i) {
    const Values row(&got.dz[i * p.classes], &got.dz[i * p.classes] + p.classes);
    if (p.weights[i] == 0) {
      EXPECT_EQ(row, Values(p.classes)) << i;
    } else {
      EXPECT_EQ(row, Values(&want.dz[next * p.classes], &want.dz[next * p.classes] + p.classes));
      ++next;
    }
  }
  p.weights.assign(p.rows, 0);
  const Results nothing = ForwardBackward(p);
  EXPECT_EQ(nothing.loss, 0);
  EXPECT_EQ(nothing.dz, Values(p.z.size()));
}

// e^1000 is beyond float64; only differences to the largest logit may be taken.
TEST_P(ClassLossTest, LargeLogits) {
  const Problem p{2, 3, 1, {1000, 500, -1000, -1000, -500, 1000}, {1, 0}, {1, 1}};
  const Results got = ForwardBackward(p), want = Oracle(p);
  EXPECT_EQ(want.loss, 500 + 2000);
  ExpectNear(got, want, p);
}

TEST_P(ClassLossTest, InfinityAndNaN) {
  const auto run = [&](const Values& z) { return ForwardBackward({1, 3, 1, z, {1}, {1}}); };
  const auto is_nan = [](const Values& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
  };
  const Results masked = run({0, 0, -kInfinity});
  EXPECT_TRUE(AllNear({masked.loss}, {std::log(2)}, Tolerance(kF32, 3)));
  EXPECT_TRUE(AllNear(masked.dz, {0.5, -0.5, 0}, Tolerance(dtype(), 3)));
  EXPECT_EQ(masked.dz[2], 0);
  const Results impossible = run({0, -kInfinity, 0});
  EXPECT_EQ(impossible.loss, kInfinity);
  EXPECT_TRUE(AllNear(impossible.dz, {0.5, -1, 0.5}, Tolerance(dtype(), 3)));
  for (const Values& z : {Values{0, NAN, 0}, Values{NAN, 0, 0}, Values{0, 1, kInfinity},
                          Values{NAN, NAN, NAN}, Values(3, -kInfinity)}) {
    const Results got = run(z);
    EXPECT_TRUE(std::isnan(got.loss)) << z[0] << z[1] << z[2];
    EXPECT_TRUE(is_nan(got.dz)) << z[0] << z[1] << z[2];
  }
}

// In every other row the target's logit is raised to the highest, or beyond all others.
TEST_P(ClassLossTest, CountsCorrectClasses) {
  for (Problem p : {MakeProblem(dtype(), 2, 0, 5, 1), MakeProblem(dtype(), 4, 5, 1, 1),
                    MakeProblem(dtype(), 5, 37, 2, 1), MakeProblem(dtype(), 7, 29, 131, 1),
                    MakeProblem(dtype(), 12, 40, 64, 1), MakeProblem(dtype(), 8, 7, 9001, 1)}) {
    SCOPED_TRACE(std::to_string(p.rows) + " x " + std::to_string(p.classes));
    for (int64_t i = 0; i < p.rows; i += 2) {
      if (p.weights[i] == 0) continue;
      const auto row = p.z.begin() + i * p.classes;
      row[static_cast<int64_t>(p.targets[i])] =
          i % 4 == 0 ? 5 : *std::max_element(row, row + p.classes);
    }
    const double want = CorrectOracle(p);
    EXPECT_NEAR(Correct(p), want, Tolerance(kF32, 1) * std::max(1.0, want));
    EXPECT_EQ(cost().flops, 2.0 * static_cast<double>(p.rows * p.classes));
    for (double& weight : p.weights) weight = weight != 0;
    EXPECT_EQ(Correct(p), CorrectOracle(p));
  }
}

TEST_P(ClassLossTest, TheLowestOfEqualClassesCounts) {
  for (const int64_t classes : {2, 9, 1000}) {
    for (const int64_t target : {int64_t{0}, int64_t{1}, classes / 2, classes - 1}) {
      SCOPED_TRACE(std::to_string(target) + " of " + std::to_string(classes));
      Problem p{1, classes, 1, Values(classes, -1), {static_cast<double>(target)}, {1}};
      const auto correct = [&](int64_t equal) {
        p.z.assign(classes, -1);
        p.z[target] = p.z[equal] = 2;
        return Correct(p);
      };
      EXPECT_EQ(correct(target), 1);
      for (const int64_t other : {int64_t{0}, target - 1, target + 1, classes - 1}) {
        if (other < 0 || other == target || other >= classes) continue;
        EXPECT_EQ(correct(other), other > target) << other;
      }
      p.z.assign(classes, -kInfinity);
      EXPECT_EQ(Correct(p), target == 0);
    }
  }
}

TEST_P(ClassLossTest, ARowWithANaNIsNotCorrect) {
  for (const int64_t classes : {3, 600}) {
    for (const int64_t nan : {int64_t{0}, int64_t{1}, classes - 1}) {
      Problem p{2, classes, 1, Values(2 * classes, 0), {1, 1}, {1, 0.5}};
      p.z[1] = p.z[classes + 1] = 2;
      p.z[nan] = NAN;
      EXPECT_EQ(Correct(p), 0.5) << nan;
    }
  }
}

TEST_P(ClassLossTest, TensorsBeginAnywhere) {
  const Problem p = MakeProblem(dtype(), 9, 3, 40, 1);
  const int64_t n = p.rows * p.classes;
  const Results want = ForwardBackward(p);
  for (const int64_t from : {1, 8}) {
    for (const int64_t to : {2, 16}) {
      Upload(p);
      const View all = Output({n + 16}), all_dz = Output({n + 16});
      Set(all.Slice(from, n), p.z);
      const View z = all.Slice(from, n).Reshape(z_.shape);
      const View dz = all_dz.Slice(to, n).Reshape(z_.shape);
      Run([&](Stream& s) {
        ClassLossForwardBackward(s, z, targets_, weights_, p.scale, std::nullopt, loss_, dz,
                                 workspace_);
      });
      EXPECT_EQ(Get(dz), want.dz);
      EXPECT_EQ(Get(loss_)[0] - kBefore, want.loss);
      const Values around = Get(all_dz);
      for (int64_t i = 0; i < n + 16; ++i) {
        if (i >= to && i < to + n) continue;
        EXPECT_TRUE(std::isnan(around[i])) << i << " is not its own";
      }
    }
  }
}

TEST_P(ClassLossTest, BitsDoNotDependOnThreads) {
  const Problem p = MakeProblem(dtype(), 10, 203, 57, 1.0f / 64);
  Upload(p);
  ExpectSameBits(
      [&](Stream& s) {
        ClassLossForwardBackward(s, z_, targets_, weights_, p.scale, std::nullopt, loss_, dz_,
                                 workspace_);
      },
      {loss_, dz_});
}

TEST_P(ClassLossTest, RefusesWrongArguments) {
  Upload(MakeProblem(dtype(), 11, 4, 5, 1));
  const auto refused = [&](View z, View targets, View weights, View loss, View dz, View workspace,
                           const std::string& message) {
    ExpectRefused(
        [=](Stream& s) {
          ClassLossForwardBackward(s, z, targets, weights, 1, std::nullopt, loss, dz, workspace);
        },
        "[class_loss_forward_backward] " + message);
  };
  refused(z_.Reshape({20}), targets_, weights_, loss_, dz_, workspace_, "z is $T [20]");
  refused(Output({4, 0}), targets_, weights_, loss_, Output({4, 0}), workspace_, "z has no colu");
  refused(z_, weights_, weights_, loss_, dz_, workspace_, "targets is fp32 [4], want int32 [4]");
  refused(z_, targets_, weights_.Slice(0, 3), loss_, dz_, workspace_, "weights is fp32 [3], want");
  refused(z_, targets_, weights_, weights_, dz_, workspace_, "loss is fp32 [4], want fp32 [1]");
  refused(z_, targets_, weights_, loss_, dz_.Reshape({5, 4}), workspace_, "dz is $T [5, 4], want");
  refused(z_, targets_, weights_, loss_, dz_, workspace_.Slice(0, 24), "workspace has 24 bytes, ");
  const View all = Workspace(64), part = Output({24});
  refused(z_, targets_, weights_, loss_, dz_, all.Slice(4, 60), "workspace does not start at a ");
  refused(part.Slice(0, 20).Reshape({4, 5}), targets_, weights_, loss_,
          part.Slice(1, 20).Reshape({4, 5}), workspace_, "dz and z overlap");
  const View first(dz_.data, kF32, {1});
  refused(z_, targets_, weights_, first, dz_, workspace_, "dz and loss overlap");
  refused(z_, targets_, weights_, weights_.Slice(0, 1), dz_, workspace_, "loss and weights overl");
  const View half = Output({4, 5}, OtherHalf());
  refused(z_, targets_, weights_, loss_, half, workspace_,
          "dz is " + std::string(Name(half.dtype)) + " [4, 5], want $T [4, 5]");
  ExpectRefused(
      [&](Stream& s) { CountCorrectClasses(s, z_, targets_, weights_, weights_, workspace_); },
      "[count_correct_classes] correct is fp32 [4], want fp32 [1]");
  ExpectRefused(
      [&](Stream& s) {
        CountCorrectClasses(s, z_, targets_, weights_, first, workspace_.Slice(0, 24));
      },
      "[count_correct_classes] workspace has 24 bytes, ");
  ExpectDTypesRefused("count_correct_classes", [&](Stream& s) {
    const View z = Output({4, 5}), targets = Output({4}, DType::kInt32);
    const View weights = Output({4}, kF32), correct = Output({1}, kF32);
    CountCorrectClasses(s, z, targets, weights, correct, workspace_);
  });
  const auto call = [&](Stream& s, bool gradients) {
    const View z = Output({4, 5}), targets = Output({4}, DType::kInt32);
    const View weights = Output({4}, kF32), loss = Output({1}, kF32);
    if (!gradients) return ClassLossForward(s, z, targets, weights, 1, loss, workspace_);
    const View scale = Output({1}, kF32);
    ClassLossForwardBackward(s, z, targets, weights, 1, scale, loss, Output({4, 5}), workspace_);
  };
  ExpectDTypesRefused("class_loss_forward", [&](Stream& s) { call(s, false); });
  ExpectDTypesRefused("class_loss_forward_backward", [&](Stream& s) { call(s, true); });
}

}  // namespace
}  // namespace fsdp
