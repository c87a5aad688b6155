#include "trainer/ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;
constexpr DType kI32 = DType::kInt32;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::string name;
  int64_t samples, length, experts;  // length: tokens of each sample, padding included.
  Values lengths;
  RouterOptions options;
  bool bias = false;

  int64_t tokens() const { return samples * length; }
  int64_t k() const { return options.experts_per_token; }
  int64_t rows() const { return tokens() * k(); }
  bool Sigmoid() const { return options.scores == RouterScores::kSigmoid; }
  bool IsReal(int64_t t) const { return t % length < int64_t(lengths[t / length]); }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const std::vector<Case>& Cases() {
  constexpr RouterScores kSigmoid = RouterScores::kSigmoid, kSoftmax = RouterScores::kSoftmax;
  static const std::vector<Case> cases{
      {"one expert", 1, 1, 1, {1}, {}},
      {"one token", 1, 1, 6, {1}, {.experts_per_token = 2}},
      {"six of six", 2, 3, 6, {3, 1}, {.experts_per_token = 6, .normalize = true}},
      {"padding", 3, 5, 8, {5, 0, 3}, {.experts_per_token = 3, .scale = 1.5}},
      {"normalized", 2, 4, 16, {4, 2}, {.experts_per_token = 4, .normalize = true}, true},
      {"sigmoid", 2, 3, 7, {2, 3}, {.experts_per_token = 2, .scores = kSigmoid}},
      {"groups", 2, 4, 24, {3, 4}, {4, kSigmoid, true, 6, 3, 2.5}, true},
      {"softmax groups", 1, 6, 12, {6}, {2, kSoftmax, true, 4, 1, 1}, true},
      {"many", 1, 4, 130, {3}, {.experts_per_token = 8, .normalize = true}},
  };
  return cases;
}

// float64's answers, for one token.
Values Scores(const Case& c, const double* logits) {
  Values p(logits, logits + c.experts);
  double sum = 0;
  const double most = *std::max_element(p.begin(), p.end());
  for (double& x : p) x = c.Sigmoid() ? 1 / (1 + std::exp(-x)) : std::exp(x - most);
  for (const double x : p) sum += x;
  for (double& x : p) x /= c.Sigmoid() ? 1 : sum;
  return p;
}

double LogSumExp(const Case& c, const double* logits) {
  double sum = 0;
  for (int64_t e = 0; e < c.experts; ++e) sum += std::exp(logits[e]);
  return std::log(sum);
}

std::vector<int64_t> BestOf(const Values& values, int64_t k) {
  std::vector<int64_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t i) { return values[i]; });
  order.resize(k);
  return order;
}

std::vector<int64_t> ChoicesFor(const Case& c, const double* logits, const Values& bias) {
  Values p = Scores(c, logits), groups;
  for (int64_t e = 0; e < c.experts; ++e) p[e] += bias[e];
  const int64_t size = c.experts / c.options.groups;
  for (int64_t g = 0; g < c.options.groups; ++g) {
    Values group(p.begin() + g * size, p.begin() + (g + 1) * size);
    std::ranges::sort(group, std::greater<>());
    groups.push_back(group[0] + (size > 1 ? group[1] : 0));
  }
  const std::vector<int64_t> kept = BestOf(groups, c.options.groups_kept);
  for (int64_t e = 0; e < c.experts; ++e) {
    if (std::ranges::find(kept, e / size) == kept.end()) p[e] = -INFINITY;
  }
  return BestOf(p, c.k());
}

Values Weights(const Case& c, const double* logits, const double* choices) {
  const Values p = Scores(c, logits);
  Values weights;
  double sum = 0;
  for (int64_t j = 0; j < c.k(); ++j) sum += p[int64_t(choices[j])];
  for (int64_t j = 0; j < c.k(); ++j) {
    weights.push_back(p[int64_t(choices[j])] / (c.options.normalize ? sum : 1) * c.options.scale);
  }
  return weights;
}

// The terms of a sample's losses.
struct Sample {
  Values counts, shares, mean;
  double z = 0;
};
Sample SampleOf(const Case& c, const Values& logits, const Values& choices, int64_t s) {
  Sample sample{Values(c.experts), Values(c.experts), Values(c.experts)};
  const double length = c.lengths[s];
  for (int64_t t = s * c.length; t < s * c.length + int64_t(length); ++t) {
    const Values p = Scores(c, &logits[t * c.experts]);
    double sum = 0;
    for (const double x : p) sum += x;
    for (int64_t e = 0; e < c.experts; ++e) sample.mean[e] += p[e] / sum / length;
    for (int64_t j = 0; j < c.k(); ++j) ++sample.counts[int64_t(choices[t * c.k() + j])];
    const double lse = LogSumExp(c, &logits[t * c.experts]);
    sample.z += lse * lse / length;
  }
  for (int64_t e = 0; e < c.experts && length > 0; ++e) {
    sample.shares[e] = sample.counts[e] / length;
  }
  return sample;
}
double Aux(const Case& c, const Sample& sample, const Values& shares) {
  return static_cast<double>(c.experts) * Dot(shares, sample.mean);
}

class RouterTest : public OpTest {
 protected:
  // A case's tensors. Logits of padding are NaN.
  struct Routing {
    Values logits_values, choice_values, place_values, weight_values;  // weights: of samples.
    View logits, lengths, choices, places, sample_weights;
  };

  Routing Make(const Case& c, uint64_t seed = 1) {
    Random random(seed, kF32);
    Routing r;
    r.logits_values = random.Vector(c.tokens() * c.experts, -3, 3);
    double place = 0;
    for (int64_t t = 0; t < c.tokens(); ++t) {
      const std::vector<int64_t> best =
          ChoicesFor(c, &r.logits_values[t * c.experts], Values(c.experts));
      for (int64_t j = 0; j < c.k(); ++j) {
        r.choice_values.push_back(c.IsReal(t) ? double(best[j]) : -1);
        r.place_values.push_back(c.IsReal(t) ? place++ : -1);
      }
    }
    // From the last row to the first: a place is not a choice's own index.
    for (double& p : r.place_values) p = p < 0 ? -1 : place - 1 - p;
    r.weight_values = random.Vector(c.samples, 0.2, 1);
    if (c.samples > 2) r.weight_values.back() = 0;
    Values with_nan = r.logits_values;
    for (int64_t t = 0; t < c.tokens(); ++t) {
      if (!c.IsReal(t)) std::fill_n(with_nan.begin() + t * c.experts, c.experts, kNaN);
    }
    const Shape choices{c.tokens(), c.k()};
    r.logits = Input({c.tokens(), c.experts}, with_nan);
    r.lengths = Input({c.samples}, c.lengths, kI32);
    r.choices = Input(choices, r.choice_values, kI32);
    r.places = Input(choices, r.place_values, kI32);
    r.sample_weights = Input({c.samples}, r.weight_values);
    return r;
  }

  Values ChoicesOf(const Values& logits, std::optional<Values> bias, const RouterOptions& options) {
    const int64_t n = std::ssize(logits);
    const View in = Input({1, n}, logits), length = Input({1}, {1}, kI32);
    std::optional<ConstView> b;
    if (bias) b = Input({n}, *bias);
    const View choices = Output({1, options.experts_per_token}, kI32);
    Run([&](Stream& s) { ChooseExperts(s, in, b, length, options, choices); });
    return Get(choices);
  }
};
FSDP_INSTANTIATE_OP_TEST(RouterTest, kF32);

TEST_P(RouterTest, ChoosesAsTheOracle) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Routing r = Make(c);
    // Larger than the scores: the choice is the bias's, the groups' sums negative.
    const Values bias = c.bias ? Random(9, kF32).Vector(c.experts, -1, 0.2) : Values(c.experts);
    std::optional<ConstView> given;
    if (c.bias) given = Input({c.experts}, bias);
    const View choices = Output(r.choices.shape, kI32);
    Run([&](Stream& s) { ChooseExperts(s, r.logits, given, r.lengths, c.options, choices); });
    Values want;
    for (int64_t t = 0; t < c.tokens(); ++t) {
      for (const int64_t e : ChoicesFor(c, &r.logits_values[t * c.experts], bias)) {
        want.push_back(c.IsReal(t) ? static_cast<double>(e) : -1);
      }
    }
    EXPECT_EQ(Get(choices), want);
    Clear();
  }
}

TEST_P(RouterTest, OfEqualScoresTheLowerExpertIsChosen) {
  const RouterOptions three{.experts_per_token = 3};
  EXPECT_EQ(ChoicesOf({1, 2, 2, 1, 2, 1}, {}, three), (Values{1, 2, 4}));
  EXPECT_EQ(ChoicesOf({1, 1, 1, 1, 1}, {}, three), (Values{0, 1, 2}));
  EXPECT_EQ(ChoicesOf(Values(70, 0), {}, three), (Values{0, 1, 2}));
  // Equal groups, of which the second and the third stay.
  const RouterOptions groups{.experts_per_token = 3, .groups = 4, .groups_kept = 2};
  EXPECT_EQ(ChoicesOf({0, 0, 2, 1, 1, 2, 2, 1}, {}, groups), (Values{2, 5, 3}));
  // A group's second best counts: {3, 0} is worse than {2, 2}.
  const RouterOptions sigmoid{3, RouterScores::kSigmoid, false, 2, 1, 1};
  EXPECT_EQ(ChoicesOf({3, -9, -9, 2, 2, 1}, {}, sigmoid), (Values{3, 4, 5}));
}

TEST_P(RouterTest, NaNIsLowest) {
  const RouterOptions sigmoid{.experts_per_token = 3, .scores = RouterScores::kSigmoid};
  EXPECT_EQ(ChoicesOf({kNaN, -90, 1, kNaN, 2}, {}, sigmoid), (Values{4, 2, 1}));
  EXPECT_EQ(ChoicesOf({kNaN, 3, kNaN, kNaN, 2}, {}, sigmoid), (Values{1, 4, 0}));
  const RouterOptions softmax{.experts_per_token = 2};
  EXPECT_EQ(ChoicesOf({1, kNaN, 3, 2}, {}, softmax), (Values{0, 1}));
  EXPECT_EQ(ChoicesOf({-INFINITY, -INFINITY, -INFINITY}, {}, softmax), (Values{0, 1}));
  EXPECT_EQ(ChoicesOf({1, 2, 3}, Values{0, 0, kNaN}, softmax), (Values{1, 0}));
  // Experts of groups that are left out stay out.
  const RouterOptions groups{2, RouterScores::kSigmoid, false, 2, 1, 1};
  EXPECT_EQ(ChoicesOf({5, kNaN, 1, 2}, {}, groups), (Values{3, 2}));
  EXPECT_EQ(ChoicesOf({5, kNaN, kNaN, 2}, {}, groups), (Values{0, 1}));

  const View logits = Input({1, 3}, {1, kNaN, 3}), places = Input({1, 2}, {1, 0}, kI32);
  const View choices = Input({1, 2}, {0, 1}, kI32), weights = Output({2});
  Run([&](Stream& s) { RouterWeights(s, logits, choices, places, softmax, weights); });
  for (const double weight : Get(weights)) EXPECT_TRUE(std::isnan(weight));
}

TEST_P(RouterTest, WeightsAreScoresWithoutTheBias) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Routing r = Make(c, 2);
    const View weights = Output({c.rows()});
    Run([&](Stream& s) { RouterWeights(s, r.logits, r.choices, r.places, c.options, weights); });
    Values want(c.rows(), kNaN), got = Get(weights);
    for (int64_t t = 0; t < c.tokens(); ++t) {
      if (!c.IsReal(t)) continue;
      const Values of = Weights(c, &r.logits_values[t * c.experts], &r.choice_values[t * c.k()]);
      for (int64_t j = 0; j < c.k(); ++j) want[int64_t(r.place_values[t * c.k() + j])] = of[j];
    }
    for (size_t i = 0; i < want.size(); ++i) {  // Nobody's rows are not written.
      EXPECT_EQ(std::isnan(want[i]), std::isnan(got[i]));
      if (std::isnan(want[i])) got[i] = want[i] = 0;
    }
    EXPECT_TRUE(AllNear(got, want, Tolerance(kF32, c.experts)));
    Clear();
  }
}

TEST_P(RouterTest, TalliesWhatSamplesHave) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Routing r = Make(c, 3);
    const Values given = Random(4, kF32).Vector(c.experts, 0, 1);
    for (const bool has_shares : {false, true}) {
      std::optional<ConstView> shares;
      if (has_shares) shares = Input({c.experts}, given);
      const View of_samples = Output({c.samples, c.experts}), losses = Output({c.samples, 2});
      const View tally = Accumulated({2 * c.experts + 3}, 0.5);
      Run([&](Stream& s) {
        TallyRouting(s, r.logits, r.choices, r.lengths, r.sample_weights, shares, c.options,
                     of_samples, losses, tally);
      });
      Values want_shares, want_losses, want(2 * c.experts + 3, 0.5);
      for (int64_t s = 0; s < c.samples; ++s) {
        const Sample of = SampleOf(c, r.logits_values, r.choice_values, s);
        const double w = c.lengths[s] > 0 ? r.weight_values[s] : 0;
        const double aux = Aux(c, of, has_shares ? given : of.shares);
        want_shares.insert(want_shares.end(), of.shares.begin(), of.shares.end());
        want_losses.insert(want_losses.end(), {aux, of.z});
        for (int64_t e = 0; e < c.experts; ++e) {
          want[e] += of.counts[e];
          want[c.experts + e] += w * of.shares[e];
        }
        want[2 * c.experts] += w;
        want[2 * c.experts + 1] += w * aux;
        want[2 * c.experts + 2] += w * of.z;
      }
      const double tolerance = Tolerance(kF32, c.experts);
      EXPECT_TRUE(AllNear(Get(of_samples), want_shares, tolerance));
      EXPECT_TRUE(AllNear(Get(losses), want_losses, tolerance));
      EXPECT_TRUE(AllNear(Get(tally), want, tolerance));
    }
    Clear();
  }
}

TEST_P(RouterTest, ASampleHasItsNumbersAlone) {
  const Case two{"two", 2, 40, 16, {33, 40}, {.experts_per_token = 4}};
  Case one = two;
  one.samples = 1;
  const Routing r = Make(two, 5);
  const View shares = Output({2, 16}), losses = Output({2, 2}), tally = Accumulated({35});
  Run([&](Stream& s) {
    TallyRouting(s, r.logits, r.choices, r.lengths, r.sample_weights, {}, two.options, shares,
                 losses, tally);
  });
  const auto second = [&](const View& view) {
    const Values all = Get(view);
    return Values(all.begin() + std::ssize(all) / 2, all.end());
  };
  const View logits = Input({40, 16}, second(r.logits));
  const View choices = Input({40, 4}, second(r.choices), kI32);
  const View length = Input({1}, {40}, kI32), weight = Input({1}, {r.weight_values[1]});
  const View own = Output({1, 16}), own_losses = Output({1, 2});
  Run([&](Stream& s) {
    TallyRouting(s, logits, choices, length, weight, {}, two.options, own, own_losses, tally);
  });
  EXPECT_EQ(Get(own), second(shares));
  EXPECT_EQ(Get(own_losses), second(losses));
}

TEST_P(RouterTest, GradientMatchesFiniteDifferences) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Routing r = Make(c, 6);
    Random random(7, kF32);
    const Values dweights = random.Vector(c.rows()), step = random.Vector(c.experts, 0, 2);
    const double scale = 4;
    for (const RouterBalance balance :
         {RouterBalance{}, RouterBalance{.aux = 0.5}, RouterBalance{.z = 0.125},
          RouterBalance{.aux = 0.25, .z = 0.0625}}) {
      const bool of_step = balance.z != 0;
      Values sample_shares;
      for (int64_t s = 0; s < c.samples; ++s) {
        const Sample of = SampleOf(c, r.logits_values, r.choice_values, s);
        sample_shares.insert(sample_shares.end(), of.shares.begin(), of.shares.end());
      }
      const auto loss = [&](const Values& logits) {
        double sum = 0;
        for (int64_t t = 0; t < c.tokens(); ++t) {
          if (!c.IsReal(t)) continue;
          const Values w = Weights(c, &logits[t * c.experts], &r.choice_values[t * c.k()]);
          for (int64_t j = 0; j < c.k(); ++j) {
            sum += w[j] * dweights[int64_t(r.place_values[t * c.k() + j])];
          }
        }
        for (int64_t s = 0; s < c.samples; ++s) {
          if (c.lengths[s] == 0) continue;
          const Sample of = SampleOf(c, logits, r.choice_values, s);
          const auto begin = sample_shares.begin() + s * c.experts;
          const Values f = of_step ? step : Values(begin, begin + c.experts);
          sum += scale * r.weight_values[s] * (balance.aux * Aux(c, of, f) + balance.z * of.z);
        }
        return sum;
      };
      const Values want = NumericGradient(loss, r.logits_values, 1e-4);
      const View gradients = Input({c.rows()}, dweights), dlogits = Output(r.logits.shape);
      const View shares =
          of_step ? Input({c.experts}, step) : Input({c.samples, c.experts}, sample_shares);
      const View loss_scale = Input({1}, {scale});
      Run([&](Stream& s) {
        RouterBackward(s, r.logits, r.choices, r.places, gradients, r.lengths, r.sample_weights,
                       shares, balance, loss_scale, c.options, dlogits);
      });
      // Shares are up to N: aux's factors up to N^2.
      const double order = 4 + scale * balance.aux * 2 * static_cast<double>(c.experts);
      EXPECT_TRUE(AllNear(Get(dlogits), want, Tolerance(kF32, 16, order) + 1e-6));
    }
    Clear();
  }
}

TEST_P(RouterTest, WithoutALossScaleItIsOne) {
  const Case c{"two", 2, 4, 6, {4, 3}, {.experts_per_token = 2}};
  const Routing r = Make(c, 8);
  const View gradients = Input({c.rows()}, Values(c.rows())), shares = Input({6}, Values(6, 1.5));
  const View one = Input({1}, {1}), want = Output(r.logits.shape), got = Output(r.logits.shape);
  const auto run = [&](const std::optional<ConstView>& scale, const View& to) {
    Run([&](Stream& s) {
      RouterBackward(s, r.logits, r.choices, r.places, gradients, r.lengths, r.sample_weights,
                     shares, {.aux = 1, .z = 1}, scale, c.options, to);
    });
  };
  run(one, want);
  run({}, got);
  EXPECT_EQ(Get(got), Get(want));
}

TEST_P(RouterTest, AddsUpSampleWeights) {
  for (const int64_t length : {1, 5, 70, 1000}) {
    Random random(length, kF32);
    const Values weights = random.Vector(3 * length, 0, 1);
    const View in = Input({3, length}, weights), sums = Output({3});
    Run([&](Stream& s) { SampleWeights(s, in, sums); });
    Values want(3);
    for (int64_t i = 0; i < 3 * length; ++i) want[i / length] += weights[i];
    EXPECT_EQ(Get(sums), RoundTo(kF32, want));
    Clear();
  }
}

TEST_P(RouterTest, BitsDoNotDependOnThreads) {
  const Case c{"many", 3, 50, 33, {50, 7, 41}, {.experts_per_token = 5, .normalize = true}};
  const Routing r = Make(c, 9);
  const View choices = Output(r.choices.shape, kI32), weights = Accumulated({c.rows()});
  const View shares = Output({3, 33}), losses = Output({3, 2}), tally = Accumulated({69});
  const View dlogits = Output(r.logits.shape);
  ExpectSameBits(
      [&](Stream& s) {
        ChooseExperts(s, r.logits, {}, r.lengths, c.options, choices);
        RouterWeights(s, r.logits, r.choices, r.places, c.options, weights);
        TallyRouting(s, r.logits, r.choices, r.lengths, r.sample_weights, {}, c.options, shares,
                     losses, tally);
        RouterBackward(s, r.logits, r.choices, r.places, weights, r.lengths, r.sample_weights,
                       shares, {.aux = 1, .z = 1}, {}, c.options, dlogits);
      },
      {choices, weights, shares, losses, tally, dlogits});
}

TEST_P(RouterTest, RefusesWrongArguments) {
  const View logits = Output({4, 6}), lengths = Input({2}, {1, 2}, kI32);
  const View choices = Input({4, 2}, Values(8), kI32), places = Input({4, 2}, Values(8), kI32);
  const auto choose = [&](const RouterOptions& options, const std::string& message) {
    ExpectRefused([&](Stream& s) { ChooseExperts(s, logits, {}, lengths, options, choices); },
                  "[choose_experts] " + message);
  };
  choose({.experts_per_token = 7}, "experts_per_token, want 1 to");
  choose({.experts_per_token = 0}, "experts_per_token, want 1 to");
  choose({.experts_per_token = 3}, "choices is int32 [4, 2]");
  choose({.experts_per_token = 2, .groups = 4}, "groups, want a divisor");
  choose({.experts_per_token = 2, .groups = 6}, "groups, want two experts");
  choose({.experts_per_token = 2, .groups = 3, .groups_kept = 4}, "groups_kept, want 1 to");
  choose({.experts_per_token = 4, .groups = 3}, "groups_kept, want experts_per_token in");
  const RouterOptions two{.experts_per_token = 2};
  const View three = Input({3}, {1, 1, 1}, kI32), weights = Output({8});
  ExpectRefused([&](Stream& s) { ChooseExperts(s, logits, {}, three, two, choices); },
                "equally many tokens");
  ExpectRefused(
      [&](Stream& s) {
        ChooseExperts(s, Output({4, 513}), {}, lengths, two, choices);
      },
      "experts, want 1 to 512");
  ExpectRefused([&](Stream& s) { ChooseExperts(s, logits, Output({5}), lengths, two, choices); },
                "bias is");
  ExpectRefused([&](Stream& s) { RouterWeights(s, logits, choices, lengths, two, weights); },
                "[router_weights] places is");
  ExpectRefused([&](Stream& s) { RouterWeights(s, logits, choices, places, two, Output({7})); },
                "[router_weights] weights is");
  ExpectRefused([&](Stream& s) { SampleWeights(s, logits, Output({3})); },
                "[sample_weights] sums is");
  const View w = Output({2}), shares = Output({2, 6}), losses = Output({2, 2}),
             tally = Output({15});
  const auto add_up = [&](const View& of_samples, const View& of_losses, const View& to) {
    return [&, of_samples, of_losses, to](Stream& s) {
      TallyRouting(s, logits, choices, lengths, w, {}, two, of_samples, of_losses, to);
    };
  };
  ExpectRefused(add_up(shares, losses, Output({14})), "[tally_routing] tally is");
  ExpectRefused(add_up(shares, w, tally), "[tally_routing] sample_losses is");
  ExpectRefused(add_up(logits.Slice(0, 12).Reshape({2, 6}), losses, tally),
                "sample_shares and logits overlap");
  const auto backward = [&](const View& of_shares, const View& to) {
    return [&, of_shares, to](Stream& s) {
      RouterBackward(s, logits, choices, places, weights, lengths, w, of_shares, {}, {}, two, to);
    };
  };
  ExpectRefused(backward(Output({5}), Output({4, 6})), "[router_backward] shares is");
  ExpectRefused(backward(shares, logits), "dlogits and logits overlap");
}

}  // namespace
}  // namespace fsdp
