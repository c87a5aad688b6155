#include "trainer/ops/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

constexpr float kEps = 1e-5f;
constexpr double kBefore = 0.25;

struct Images {
  int64_t samples, height, width, channels;
  Values weights;

  Shape shape() const { return {samples, height, width, channels}; }
  int64_t pixels() const { return height * width; }
  int64_t size() const { return samples * pixels() * channels; }
  bool Counts(int64_t element) const { return weights[element / channels / pixels()] != 0; }
};

std::vector<Images> AllImages() {
  return {{3, 2, 3, 5, {1, 0.5, 2}},
          {4, 1, 1, 33, {1, 0, 1, 1}},   // One sample does not count.
          {2, 17, 16, 3, {1, 1}},        // Several pieces a sample.
          {19, 1, 2, 3, Values(19, 1)},  // More pieces than warps that join them.
          {2, 3, 3, 131, {0, 1}}};
}

struct Moments {
  double count = 0;
  Values mean, squares;
};
Moments MomentsOf(const Images& c, const Values& x) {
  Moments m{0, Values(c.channels, 0.0), Values(c.channels, 0.0)};
  for (int64_t i = 0; i < c.size(); ++i) {
    if (!c.Counts(i)) continue;
    m.mean[i % c.channels] += x[i];
    if (i % c.channels == 0) ++m.count;
  }
  for (double& mean : m.mean) mean /= std::max(1.0, m.count);
  for (int64_t i = 0; i < c.size(); ++i) {
    if (!c.Counts(i)) continue;
    const double d = x[i] - m.mean[i % c.channels];
    m.squares[i % c.channels] += d * d;
  }
  return m;
}
Values Concatenated(double count, const Values& a, const Values& b) {
  Values all{count};
  all.insert(all.end(), a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}
Values StatisticsOf(const Moments& m) {
  Values r;
  for (const double squares : m.squares) {
    r.push_back(m.count > 0 ? 1 / std::sqrt(squares / m.count + double{kEps}) : 0);
  }
  return Concatenated(m.count, m.mean, r);
}

Values NormOracle(const Images& c, const Values& x, const Values& statistics, const Values& w,
                  const Values& b, bool relu) {
  Values y;
  for (int64_t i = 0; i < c.size(); ++i) {
    const int64_t channel = i % c.channels;
    const double r = statistics[1 + c.channels + channel];
    const double value = w[channel] * (x[i] - statistics[1 + channel]) * r + b[channel];
    y.push_back(relu ? std::max(0.0, value) : value);
  }
  return y;
}
Values InTraining(const Images& c, const Values& x, const Values& w, const Values& b, bool relu) {
  return NormOracle(c, x, StatisticsOf(MomentsOf(c, x)), w, b, relu);
}

class BatchNormTest : public OpTest {
 protected:
  View Pieces(const Images& c) { return Workspace(BatchNormWorkspaceBytes(c.shape())); }
  View Statistics(const Images& c) { return Output({1 + 2 * c.channels}, kF32); }
  // Statistics of x, on one rank.
  View OwnStatistics(const Images& c, const View& x, const View& weights,
                     const std::optional<RunningMoments>& running = std::nullopt) {
    const View part = Output({1, 1 + 2 * c.channels}, kF32), statistics = Statistics(c);
    const View pieces = Pieces(c);
    Run([&](Stream& s) {
      BatchMoments(s, x, weights, part.Reshape({1 + 2 * c.channels}), pieces);
      JoinMoments(s, part, kEps, statistics, running);
    });
    return statistics;
  }
};
FSDP_INSTANTIATE_OP_TEST(BatchNormTest, kF32, kBF16, kF16);

// A part's squares are sums with a term for each pixel; statistics are means.
TEST_P(BatchNormTest, MomentsAreThoseOfWhatCounts) {
  for (const Images& c : AllImages()) {
    const Values values = Random(1, dtype()).Vector(c.size(), 2, 4);
    const View x = Input(c.shape(), values), weights = Input({c.samples}, c.weights, kF32);
    const View part = Output({1 + 2 * c.channels}, kF32), pieces = Pieces(c);
    Run([&](Stream& s) { BatchMoments(s, x, weights, part, pieces); });
    const Moments want = MomentsOf(c, values);
    const double terms = c.pixels() * c.samples;
    EXPECT_TRUE(AllNear(Get(part), Concatenated(want.count, want.mean, want.squares),
                        Tolerance(kF32, static_cast<int64_t>(terms), 4)));
    Clear();
  }
}

TEST_P(BatchNormTest, RanksJoin) {
  constexpr int64_t kChannels = 67;
  // The second rank has nothing that counts, the mean is far from zero.
  const std::vector<Images> ranks = {
      {2, 2, 2, kChannels, {1, 1}}, {1, 2, 2, kChannels, {0}}, {3, 2, 2, kChannels, {1, 0, 1}}};
  Values parts, all;
  Images together{6, 2, 2, kChannels, {1, 1, 0, 1, 0, 1}};
  Random random(2, dtype());
  for (const Images& c : ranks) {
    const Values x = random.Vector(c.size(), 5, 7);
    all.insert(all.end(), x.begin(), x.end());
    const Moments m = MomentsOf(c, x);
    const Values part = Concatenated(m.count, m.mean, m.squares);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  const View vparts = Input({3, 1 + 2 * kChannels}, RoundTo(kF32, parts), kF32);
  const View statistics = Statistics(together);
  const View mean = Accumulated({kChannels}, 3, kF32);
  const View variance = Accumulated({kChannels}, 2, kF32);
  Run([&](Stream& s) {
    JoinMoments(s, vparts, kEps, statistics, RunningMoments{mean, variance, 0.1f});
  });
  const Moments want = MomentsOf(together, all);
  EXPECT_TRUE(AllNear(Get(statistics), StatisticsOf(want), Tolerance(kF32, 1, 8)));
  Values wanted_mean, wanted_variance;
  for (int64_t j = 0; j < kChannels; ++j) {
    wanted_mean.push_back(3 + 0.1 * (want.mean[j] - 3));
    wanted_variance.push_back(2 + 0.1 * (want.squares[j] / (want.count - 1) - 2));
  }
  // Two runs, on the emulator in two orders. Each starts from the running values that it finds.
  if (kernel_type() == DeviceType::kCpu) {
    EXPECT_TRUE(AllNear(Get(mean), wanted_mean, Tolerance(kF32, 1)));
    EXPECT_TRUE(AllNear(Get(variance), wanted_variance, Tolerance(kF32, 1)));
  }
}

TEST_P(BatchNormTest, NothingThatCountsChangesNothing) {
  const Images c{2, 2, 2, 3, {0, 0}};
  const View x = Input(c.shape(), Random(3, dtype()).Vector(c.size()));
  const View weights = Input({2}, c.weights, kF32);
  const View mean = Accumulated({3}, 3, kF32), variance = Accumulated({3}, 2, kF32);
  const View statistics = OwnStatistics(c, x, weights, RunningMoments{mean, variance, 0.5f});
  EXPECT_EQ(Get(statistics), Values(7, 0.0));
  EXPECT_EQ(Get(mean), Values(3, 3.0));
  EXPECT_EQ(Get(variance), Values(3, 2.0));
  const View w = Input({3}, {1, 2, 3}), b = Input({3}, {4, 5, 6}), y = Output(c.shape());
  Run([&](Stream& s) { BatchNormForward(s, x, statistics, w, b, false, y); });
  Values want;
  for (int64_t i = 0; i < c.size(); ++i) want.push_back(4.0 + static_cast<double>(i % 3));
  EXPECT_EQ(Get(y), want);
}

TEST_P(BatchNormTest, RunningMomentsAreUsed) {
  const Images c{1, 1, 1, 70, {1}};
  Random random(4, kF32);
  const Values mean = random.Vector(70), variance = random.Vector(70, 0.5, 2);
  const View vmean = Input({70}, mean, kF32), vvariance = Input({70}, variance, kF32);
  const View statistics = Statistics(c);
  Run([&](Stream& s) { UseRunningMoments(s, vmean, vvariance, kEps, statistics); });
  Values r;
  for (const double v : variance) r.push_back(1 / std::sqrt(v + double{kEps}));
  EXPECT_TRUE(AllNear(Get(statistics), Concatenated(0, mean, r), Tolerance(kF32, 1)));
}

TEST_P(BatchNormTest, ForwardMatchesFormula) {
  for (const Images& c : AllImages()) {
    for (const DType of_weights : WeightDTypes()) {
      for (const bool relu : {false, true}) {
        Random random(5, dtype()), parameters(6, of_weights), sums(7, kF32);
        const Values x = random.Vector(c.size()), w = parameters.Vector(c.channels);
        const Values b = parameters.Vector(c.channels);
        const Values statistics =
            Concatenated(5, sums.Vector(c.channels), sums.Vector(c.channels, 0.5, 2));
        const View vx = Input(c.shape(), x), vw = Input({c.channels}, w, of_weights);
        const View vb = Input({c.channels}, b, of_weights), y = Output(c.shape());
        const View vstatistics = Input({1 + 2 * c.channels}, statistics, kF32);
        Run([&](Stream& s) { BatchNormForward(s, vx, vstatistics, vw, vb, relu, y); });
        EXPECT_TRUE(
            AllNear(Get(y), NormOracle(c, x, statistics, w, b, relu), Tolerance(dtype(), 3, 2)));
        Clear();
      }
    }
  }
}

// Through the statistics of the batch, against differences of the whole norm.
TEST_P(BatchNormTest, GradientMatchesFiniteDifferences) {
  for (const bool relu : {false, true}) {
    for (const Images& c : {Images{3, 2, 2, 5, {1, 1, 0.5}}, Images{3, 1, 2, 4, {1, 0, 1}}}) {
      Random random(8, dtype());
      const Values x = random.Vector(c.size()), w = random.Vector(c.channels, 0.5, 1);
      const Values b = random.Vector(c.channels);
      Values dy = random.Vector(c.size());
      // No loss looks at what does not count.
      for (int64_t i = 0; i < c.size(); ++i) dy[i] *= c.Counts(i) ? 1 : 0;
      const View vx = Input(c.shape(), x), vw = Input({c.channels}, w);
      const View vb = Input({c.channels}, b), vdy = Input(c.shape(), dy);
      const View weights = Input({c.samples}, c.weights, kF32);
      const View statistics = OwnStatistics(c, vx, weights);
      const View dw = Accumulated({c.channels}, kBefore, kF32);
      const View db = Accumulated({c.channels}, kBefore, OtherHalf());
      const View sums = Output({2, c.channels}, kF32), dx = Output(c.shape()), pieces = Pieces(c);
      Run([&](Stream& s) {
        BatchNormSums(s, vx, statistics, vw, vb, relu, vdy, dw, db, sums, pieces);
      });
      Run([&](Stream& s) {
        BatchNormBackward(s, vx, weights, statistics, vw, vb, relu, sums, vdy, dx);
      });
      const auto loss = [&](const Values& x, const Values& w, const Values& b) {
        return Dot(dy, InTraining(c, x, w, b, relu));
      };
      Values want_w = NumericGradient([&](const Values& v) { return loss(x, v, b); }, w, 1e-6);
      Values want_b = NumericGradient([&](const Values& v) { return loss(x, w, v); }, b, 1e-6);
      for (double& v : want_w) v += kBefore;
      for (double& v : want_b) v += kBefore;
      // r is at most a few: of order ten with the square of it.
      const int64_t terms = c.samples * c.pixels();
      EXPECT_TRUE(AllNear(Get(dw), want_w, Tolerance(kF32, terms, 8)));
      EXPECT_TRUE(AllNear(Get(db), want_b, Tolerance(OtherHalf(), terms)));
      const Values want_x =
          NumericGradient([&](const Values& v) { return loss(v, w, b); }, x, 1e-6);
      EXPECT_TRUE(AllNear(Get(dx), want_x, Tolerance(dtype(), terms, 8)));
      Clear();
    }
  }
}

// Over many pixels, compared with the formulas in float64; in place to the same bits.
TEST_P(BatchNormTest, BackwardMatchesFormula) {
  for (const Images& c : AllImages()) {
    for (const DType of_weights : WeightDTypes()) {
      Random random(9, dtype()), parameters(10, of_weights);
      const Values x = random.Vector(c.size()), dy = random.Vector(c.size());
      const Values w = parameters.Vector(c.channels), b = parameters.Vector(c.channels, 1, 2);
      const Values statistics = RoundTo(kF32, StatisticsOf(MomentsOf(c, x)));
      const double n = statistics[0];
      Values want_sums(2 * c.channels, 0.0), want_dx;
      const auto h = [&](int64_t i) {
        const int64_t channel = i % c.channels;
        return (x[i] - statistics[1 + channel]) * statistics[1 + c.channels + channel];
      };
      for (int64_t i = 0; i < c.size(); ++i) {
        want_sums[i % c.channels] += dy[i];
        want_sums[c.channels + i % c.channels] += dy[i] * h(i);
      }
      const View vx = Input(c.shape(), x), vdy = Input(c.shape(), dy);
      const View vw = Input({c.channels}, w, of_weights), vb = Input({c.channels}, b, of_weights);
      const View weights = Input({c.samples}, c.weights, kF32);
      const View vstatistics = Input({1 + 2 * c.channels}, statistics, kF32);
      const View sums = Output({2, c.channels}, kF32), dx = Output(c.shape()), pieces = Pieces(c);
      Run([&](Stream& s) {
        BatchNormSums(s, vx, vstatistics, vw, vb, false, vdy, std::nullopt, std::nullopt, sums,
                      pieces);
      });
      const Values got = Get(sums);
      EXPECT_TRUE(AllNear(got, want_sums, Tolerance(kF32, c.samples * c.pixels(), 8)));
      for (int64_t i = 0; i < c.size(); ++i) {
        const int64_t channel = i % c.channels;
        const double along =
            c.Counts(i) ? got[channel] / n + h(i) * got[c.channels + channel] / n : 0;
        want_dx.push_back(w[channel] * statistics[1 + c.channels + channel] * (dy[i] - along));
      }
      Run([&](Stream& s) {
        BatchNormBackward(s, vx, weights, vstatistics, vw, vb, false, sums, vdy, dx);
      });
      EXPECT_TRUE(AllNear(Get(dx), want_dx, Tolerance(dtype(), 4, 8)));
      ExpectSameBits(
          [&](Stream& s) {
            BatchNormSums(s, vx, vstatistics, vw, vb, false, vdy, std::nullopt, std::nullopt, sums,
                          pieces);
            BatchNormBackward(s, vx, weights, vstatistics, vw, vb, false, sums, vdy, dx);
          },
          {sums, dx});
      Clear();
    }
  }
}

TEST_P(BatchNormTest, MayBeInPlace) {
  const Images c{2, 2, 2, 5, {1, 1}};
  Random random(11, dtype());
  const Values x = random.Vector(c.size()), one(5, 1.0), zero(5, 0.0);
  const View vx = Input(c.shape(), x), w = Input({5}, one), b = Input({5}, zero);
  const View statistics = Input({11}, Concatenated(8, Values(5, 0.25), Values(5, 2.0)), kF32);
  const View y = Output(c.shape());
  Run([&](Stream& s) { BatchNormForward(s, vx, statistics, w, b, true, y); });
  const Values want = Get(y);
  const View in_place = Input(c.shape(), x);
  if (kernel_type() != DeviceType::kCpu) return;  // A second order would begin from its result.
  Run([&](Stream& s) { BatchNormForward(s, in_place, statistics, w, b, true, in_place); });
  EXPECT_EQ(Get(in_place), want);
}

TEST_P(BatchNormTest, RefusesWrongArguments) {
  const View x = Output({2, 3, 3, 4}), weights = Output({2}, kF32), part = Output({9}, kF32);
  const View workspace = Workspace(BatchNormWorkspaceBytes({2, 3, 3, 4}));
  const View w = Output({4}), b = Output({4}), y = Output({2, 3, 3, 4});
  const View sums = Output({2, 4}, kF32);
  ExpectRefused([&](Stream& s) { BatchMoments(s, x, Output({3}, kF32), part, workspace); },
                "[batch_moments] weights is fp32 [3], want fp32 [2]");
  ExpectRefused([&](Stream& s) { BatchMoments(s, x, weights, Output({8}, kF32), workspace); },
                "[batch_moments] part is fp32 [8], want fp32 [9]");
  ExpectRefused([&](Stream& s) { BatchMoments(s, Output({2}), weights, part, workspace); },
                "[batch_moments] x is [2], want [samples, ..., channels] with elements");
  ExpectRefused(
      [&](Stream& s) {
        JoinMoments(s, Output({2, 8}, kF32), kEps, part, std::nullopt);
      },
      "[join_moments] parts are not [ranks, 1 + 2 channels]");
  ExpectRefused([&](Stream& s) { UseRunningMoments(s, weights, weights, kEps, part); },
                "[use_running_moments] statistics is fp32 [9], want fp32 [5]");
  ExpectRefused([&](Stream& s) { BatchNormForward(s, x, part, w, Output({5}), false, y); },
                "[batch_norm_forward] b is $T [5], want $T [4]");
  ExpectRefused([&](Stream& s) { BatchNormForward(s, x, weights, w, b, false, y); },
                "[batch_norm_forward] statistics is fp32 [2], want fp32 [9]");
  ExpectRefused(
      [&](Stream& s) {
        BatchNormSums(s, x, part, w, b, false, y, w, std::nullopt, sums, workspace);
      },
      "[batch_norm_sums] dw and w overlap");
  ExpectRefused([&](Stream& s) { BatchNormBackward(s, x, weights, part, w, b, false, sums, y, x); },
                "[batch_norm_backward] dx and x overlap");
  ExpectDTypesRefused("batch_moments", [&](Stream& s) {
    BatchMoments(s, Output({2, 3, 3, 4}), Output({2}, kF32), Output({9}, kF32), workspace);
  });
  ExpectDTypesRefused("batch_norm_forward", [&](Stream& s) {
    BatchNormForward(s, Output({2, 3, 3, 4}), Output({9}, kF32), Output({4}), Output({4}), true,
                     Output({2, 3, 3, 4}));
  });
  ExpectDTypesRefused("batch_norm_sums", [&](Stream& s) {
    const View x = Output({2, 3, 3, 4}), statistics = Output({9}, kF32), w = Output({4});
    const View b = Output({4}), dy = Output({2, 3, 3, 4}), dw = Output({4}), db = Output({4});
    BatchNormSums(s, x, statistics, w, b, true, dy, dw, db, Output({2, 4}, kF32), workspace);
  });
  ExpectDTypesRefused("batch_norm_backward", [&](Stream& s) {
    const View x = Output({2, 3, 3, 4}), weights = Output({2}, kF32);
    const View statistics = Output({9}, kF32), w = Output({4}), b = Output({4});
    const View sums = Output({2, 4}, kF32), dy = Output({2, 3, 3, 4});
    BatchNormBackward(s, x, weights, statistics, w, b, true, sums, dy, Output({2, 3, 3, 4}));
  });
}

}  // namespace
}  // namespace fsdp
