// The common promises of both optimizers' ops: stochastic rounding, the copy, the average.
#include "trainer/ops/update.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "tests/trainer/ops/update_oracle.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"adamw_cuda", "sgd_cuda"});

constexpr uint64_t kSeed = 0x123456789abcdefu, kTensor = 0xfedcba9876543210u;

class UpdateTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors(double lr, int64_t update = 1) {
    const UpdateFactors factors = FactorsAt(lr, 0.9, 0.999, update);
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
  View One() { return Input({1}, {1}, kF32); }

  // Elements of bf16 that a step of SGD makes of these, starting from p = 0: x itself is rounded.
  // `cuts`: where calls begin, as if shards did, the first element being number `first`.
  std::vector<double> Rounded(const std::vector<double>& x, uint64_t seed, int64_t update,
                              uint64_t tensor, int64_t first = 0,
                              const std::vector<int64_t>& cuts = {0}) {
    const int64_t n = static_cast<int64_t>(x.size());
    const View g = Input({n}, x, kF32), p = Accumulated({n}, 0, kBF16), one = One();
    const View factors = Factors(-1, update);
    for (size_t i = 0; i < cuts.size(); ++i) {
      const int64_t begin = cuts[i], count = (i + 1 < cuts.size() ? cuts[i + 1] : n) - begin;
      const View rules = Rules({{0, count, 0, 1, tensor, first + begin}});
      Run([&](Stream& s) {
        Sgd(s, {}, rules, factors, one, g.Slice(begin, count), p.Slice(begin, count), View(),
            {.seed = seed});
      });
    }
    return Get(p);
  }
};
FSDP_INSTANTIATE_OP_TEST(UpdateTest, kF32);  // The dtype of arithmetic.

// Each of the three results of a step has draws of its own, and becomes the value that its draw
// says.
TEST_P(UpdateTest, DrawsAreThoseOfTheDefinition) {
  const int64_t n = 1000, first = (int64_t{3} << 36) + 37;
  Random random(1, kF32);
  const auto gradients = random.Vector(n);
  for (const int64_t update : {int64_t{1}, int64_t{7} << 33}) {
    const View g = Input({n}, gradients, kF32), p = Accumulated({n}, 0, kBF16);
    const View m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16), one = One();
    const View exact_p = Accumulated({n}, 0), exact_m = Accumulated({n}, 0),
               exact_v = Accumulated({n}, 0);
    const View rules = Rules({{0, n, 0, 1, kTensor, first}}), factors = Factors(0.1, update);
    Run([&](Stream& s) {
      AdamW(s, {}, rules, factors, one, g, p, m, v, {.seed = kSeed});
      AdamW(s, {}, rules, factors, one, g, exact_p, exact_m, exact_v);
    });
    uint32_t what = 0;
    for (const auto& [kept, exact] : {std::pair(p, exact_p), {m, exact_m}, {v, exact_v}}) {
      const auto got = Get(kept), from = Get(exact);
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t draw = UpdateDraw(kSeed, update, what, kTensor, first + i);
        const auto x = static_cast<float>(from[i]);
        ASSERT_EQ(got[i], Truncated(std::bit_cast<float>(std::bit_cast<uint32_t>(x) + draw)))
            << "element " << i << " of " << what;
      }
      ++what;
    }
  }
}

// By every kernel there is, each element has the definition's bits: whatever its dtypes and
// neighbours, in tensors that begin at multiples of 16 bytes (n = 620) and elsewhere.
TEST_P(UpdateTest, VariantsAreTheDefinition) {
  constexpr int64_t kUpdate = 5;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6};
  const UpdateFactors factors = FactorsAt(0.1, options.beta1, options.beta2, kUpdate);
  const float c = 0.7f;
  for (const int64_t n : {620, 621}) {
    // Behind what no rule covers: whole chunks, odd places, a chunk's second half first.
    const std::vector<ElementRule> rules = {{8, 210, 0.1, 0.5, kTensor, 64},
                                            {210, 350, 0, 1, kTensor + 1, 17},
                                            {352, n, 0.2, 2, kTensor + 2, 96}};
    std::vector<ElementRule> rule_of(n);
    std::vector<std::array<uint32_t, 3>> draws(n);
    for (int64_t i = 0; i < n; ++i) {
      for (const ElementRule& rule : rules) {
        if (rule.begin <= i && i < rule.end) rule_of[i] = rule;
      }
      const ElementRule& rule = rule_of[i];
      for (uint32_t k = 0; k < 3; ++k) {
        draws[i][k] = UpdateDraw(kSeed, kUpdate, k, rule.tensor, rule.element + i - rule.begin);
      }
    }
    const auto g = Random(1, kF16).Vector(n), p = Random(2, kBF16).Vector(n),
               m = Random(3, kBF16).Vector(n), v = Random(4, kBF16).Vector(n, 0, 1),
               a = Random(5, kF32).Vector(n);
    for (const UpdateVariant& variant : EveryUpdateVariant()) {
      if (variant.rule == UpdateRule::kSgd && variant.state != kF32) continue;  // It has none.
      if (n == 621 && (variant.copy || variant.average)) continue;
      const bool adamw = variant.rule == UpdateRule::kAdamW;
      const View in = Input({n}, RoundTo(variant.gradient, g), variant.gradient);
      const View master = Input({n}, p, variant.master);
      const View first = Input({n}, m, variant.state), second = Input({n}, v, variant.state);
      const View copy = variant.copy ? Output({n}, *variant.copy) : View();
      const View average = variant.average ? Input({n}, a, kF32) : View();
      const View table = Rules(rules), coefficient = Input({1}, {c}, kF32),
                 block = Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
      const UpdateExtras extras{.seed = kSeed, .copy = copy, .average = average, .decay = 0.875};
      const double momentum = variant.rule == UpdateRule::kMomentum ? 0.9 : 0;
      Run([&](Stream& s) {
        if (adamw) {
          AdamW(s, options, table, block, coefficient, in, master, first, second, extras);
        } else {
          Sgd(s, {.momentum = momentum}, table, block, coefficient, in, master,
              momentum > 0 ? first : View(), extras);
        }
      });
      const auto gradients = RoundTo(variant.gradient, g), got_p = Get(master),
                 got_first = Get(first), got_second = Get(second),
                 got_copy = variant.copy ? Get(copy) : gradients,
                 got_average = variant.average ? Get(average) : gradients;
      const std::string what = NameOf(variant);
      for (int64_t i = 0; i < n; ++i) {
        const ElementRule& rule = rule_of[i];
        const double lr = rule.lr_scale * factors.lr;
        const AdamWFactors adamw_factors{.c = c,
                                         .beta1_new = static_cast<float>(1 - options.beta1),
                                         .beta2_old = static_cast<float>(options.beta2),
                                         .beta2_new = static_cast<float>(1 - options.beta2),
                                         .eps = static_cast<float>(options.eps),
                                         .root_factor = factors.root_factor,
                                         .keep = static_cast<float>(1 - lr * rule.weight_decay),
                                         .step_size = static_cast<float>(lr / factors.correction1)};
        const SgdFactors sgd_factors{.c = c,
                                     .momentum = static_cast<float>(momentum),
                                     .lr = static_cast<float>(lr),
                                     .weight_decay = static_cast<float>(rule.weight_decay)};
        UpdatedElement want{static_cast<float>(gradients[i]), static_cast<float>(p[i]),
                            static_cast<float>(m[i]), static_cast<float>(v[i]),
                            static_cast<float>(a[i])};
        UpdateElement(variant, adamw_factors, sgd_factors, 0.125f, draws[i], want);
        ASSERT_EQ(got_p[i], want.p) << what << i;
        ASSERT_EQ(got_first[i], want.first) << what << i;
        ASSERT_EQ(got_second[i], want.second) << what << i;
        if (variant.copy) {
          ASSERT_EQ(got_copy[i], RoundTo(*variant.copy, want.p)) << what << i;
        }
        if (variant.average) {
          ASSERT_EQ(got_average[i], want.average) << what << i;
        }
      }
      Clear();
    }
  }
}

// 2^16 elements for each distance: the number that goes up is binomial.
TEST_P(UpdateTest, ProbabilityIsTheDistance) {
  constexpr int64_t kN = 1 << 16;
  uint64_t tensor = kTensor;
  for (const uint32_t fraction : {1u, 1000u, 0x4000u, 0x5555u, 0x8000u, 0xc001u, 0xffffu}) {
    for (const float base : {1.0f, -3.0f, 1e-20f}) {
      const float below = Truncated(base);
      const float x = std::bit_cast<float>(std::bit_cast<uint32_t>(below) | fraction);
      const auto got = Rounded(std::vector<double>(kN, x), kSeed, 1, ++tensor);
      int64_t up = 0;
      for (const double y : got) {
        ASSERT_TRUE(y == below || y == Beyond(below)) << y << " of " << x;
        up += y != below;
      }
      const double probability = fraction / 65536.0;
      const double error = std::sqrt(kN * probability * (1 - probability));
      EXPECT_LE(std::abs(static_cast<double>(up) - kN * probability), 5 * error) << x;
    }
  }
}

// Over all of an update's values, in units of the distance between the two neighbours.
TEST_P(UpdateTest, MeanIsTheValue) {
  constexpr int64_t kN = 200000;
  Random random(3, kF32);
  const auto values = random.Vector(kN);
  for (const int64_t update : {1, 2, 3}) {
    const auto got = Rounded(values, kSeed, update, kTensor);
    double bias = 0, variance = 0;
    for (int64_t i = 0; i < kN; ++i) {
      const auto x = static_cast<float>(values[i]);
      const double below = Truncated(x), step = Beyond(Truncated(x)) - below;
      const double fraction = (x - below) / step;
      bias += (got[i] - x) / step;
      variance += fraction * (1 - fraction);
    }
    EXPECT_LE(std::abs(bias), 5 * std::sqrt(variance));
    EXPECT_GT(variance, kN / 8.0);  // There was something to round.
  }
}

// Keys that differ in one part give unrelated draws, so half of the values agree.
TEST_P(UpdateTest, EveryPartOfTheKeyCounts) {
  constexpr int64_t kN = 4096;
  const std::vector<double> half(kN, 1 + Epsilon(kBF16) / 2);
  const auto base = Rounded(half, kSeed, 5, kTensor);
  EXPECT_EQ(Rounded(half, kSeed, 5, kTensor), base);
  const auto expect_unrelated = [&](const std::vector<double>& other, const std::string& what) {
    int64_t equal = 0;
    for (int64_t i = 0; i < kN; ++i) equal += base[i] == other[i];
    EXPECT_LE(std::abs(equal - kN / 2), 5 * std::sqrt(kN) / 2) << what;
  };
  expect_unrelated(Rounded(half, kSeed + 1, 5, kTensor), "seed");
  expect_unrelated(Rounded(half, kSeed ^ (uint64_t{1} << 63), 5, kTensor), "seed, upper half");
  expect_unrelated(Rounded(half, kSeed, 6, kTensor), "update");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor + 1), "tensor");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor ^ (uint64_t{1} << 63)), "tensor, upper half");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor, kN), "element");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor, int64_t{1} << 40), "element, upper half");
}

// A tensor's bits are the same, whatever shards cut it and wherever in a shard it lies.
TEST_P(UpdateTest, BitsDoNotDependOnShards) {
  constexpr int64_t kN = 3000;
  Random random(4, kF32);
  const auto values = random.Vector(kN);
  const auto whole = Rounded(values, kSeed, 1, kTensor);
  EXPECT_EQ(Rounded(values, kSeed, 1, kTensor, 0, {0, 1, 64, 65, 1000, 1512, 2999}), whole);
  EXPECT_EQ(Rounded(values, kSeed, 1, kTensor, 0, {0, 256, 512, 1792}), whole);
  // Behind others, in a table of several rules.
  const int64_t at = 77;
  std::vector<double> behind(at, 0.25);
  behind.insert(behind.end(), values.begin(), values.end());
  const View g = Input({at + kN}, behind, kF32), p = Accumulated({at + kN}, 0, kBF16);
  const View rules = Rules({{0, at - 5, 0, 1, 9, 50},
                            {at, at + 1111, 0, 1, kTensor, 0},
                            {at + 1111, at + kN, 0, 1, kTensor, 1111}});
  const View factors = Factors(-1), one = One();
  ExpectSameBits([&](Stream& s) { Sgd(s, {}, rules, factors, one, g, p, View(), {.seed = kSeed}); },
                 {p});
  EXPECT_EQ(Get(p.Slice(at, kN)), whole);
}

TEST_P(UpdateTest, ValuesOfTheirOwnKindStay) {
  const float largest = static_cast<float>(Largest(kBF16));
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<double> exact;
  for (const float x : {0.0f, 1.0f, -1.5f, 1e-30f, largest, inf}) {
    for (const float sign : {1.0f, -1.0f}) exact.push_back(sign * RoundTo(kBF16, x));
  }
  const std::vector<double> beyond(40, std::numeric_limits<float>::max());
  for (const int64_t update : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(Rounded(exact, kSeed, update, kTensor), exact);
    // Finite values stay finite, NaN is NaN.
    EXPECT_EQ(Rounded(beyond, kSeed, update, kTensor), std::vector<double>(40, largest));
    for (const double y : Rounded(std::vector<double>(40, std::nan("")), kSeed, update, kTensor)) {
      EXPECT_TRUE(std::isnan(y));
    }
  }
}

// From a second moment that has settled the gradient falls by 100: v has to fall by a thousandth a
// step, where a value of bf16 is 1/128 to 1/256 from the next. Rounded to nearest it stays.
TEST_P(UpdateTest, SecondMomentFollowsAFallingGradient) {
  constexpr int kSteps = 2000;
  constexpr int64_t kN = 1024;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.999};
  std::vector<UpdateFactors> factors;
  std::vector<double> gradients, want;
  float nearest = 1;
  for (int step = 1; step <= kSteps; ++step) {
    factors.push_back(FactorsAt(0, options.beta1, options.beta2, step));
    gradients.push_back(RoundTo(kF32, std::pow(100, -1.0 * step / kSteps)));
    const double square = gradients.back() * gradients.back();
    want.push_back(options.beta2 * (want.empty() ? 1 : want.back()) + (1 - options.beta2) * square);
    nearest =
        static_cast<float>(RoundTo(kBF16, options.beta2 * nearest + (1 - options.beta2) * square));
  }
  const View p = Accumulated({kN}, 0), m = Accumulated({kN}, 0, kBF16),
             v = Accumulated({kN}, 1, kBF16), g = Accumulated({kN}, 1);
  const View rules = Rules({{0, kN, 0, 1, kTensor, 0}});
  const View coefficients = Input({kSteps}, gradients);
  const int64_t bytes = sizeof(UpdateFactors);
  const View blocks = Input({kSteps * bytes}, BytesOf(factors.data(), kSteps), DType::kUInt8);
  for (int step = 0; step < kSteps; step += 250) {
    Run([&](Stream& s) {
      for (int i = step; i < step + 250; ++i) {
        AdamW(s, options, rules, blocks.Slice(i * bytes, bytes), coefficients.Slice(i, 1), g, p, m,
              v, {.seed = kSeed});
      }
    });
    double mean = 0;
    for (const double value : Get(v)) mean += value / kN;
    const double oracle = want[step + 249];
    EXPECT_NEAR(mean, oracle, 0.02 * oracle) << "step " << step + 250;
  }
  EXPECT_EQ(nearest, 1) << "rounding to nearest would do";
  EXPECT_LT(want.back(), 0.3);
}

// The copy is the kept p, rounded once.
TEST_P(UpdateTest, CopyIsACastOfTheMaster) {
  const int64_t n = 2333;
  Random random(5, kBF16);
  const auto p0 = random.Vector(n), gradients = Random(6, kF32).Vector(n);
  for (const DType master : {kF32, kBF16}) {
    for (const DType dtype : {kF32, kBF16, kF16}) {
      const View p = Input({n}, p0, master), b = Accumulated({n}, 0, kBF16);
      const View g = Input({n}, gradients, kF32), one = One(), factors = Factors(1e-3);
      const View rules = Rules({{5, n, 0.1, 1, kTensor, 0}});
      const View copy = Output({n}, dtype);
      const auto call = [&](const View& copy) {
        return [=](Stream& s) {
          Sgd(s, {.momentum = 0.9}, rules, factors, one, g, p, b, {.seed = kSeed, .copy = copy});
        };
      };
      Run(call(copy));
      EXPECT_EQ(Get(copy), RoundTo(dtype, Get(p))) << Name(master) << " to " << Name(dtype);
      const auto with = Get(p), momentum = Get(b);
      Set(p, p0), Set(b, std::vector<double>(n));
      Run(call(View()));
      EXPECT_EQ(Get(p), with);
      EXPECT_EQ(Get(b), momentum);
    }
  }
}

// The average is of the kept p: (1 - decay) (p - a) + a. The difference is rounded once, and so is
// the fused operation.
TEST_P(UpdateTest, AverageFollowsWhatIsKept) {
  const int64_t n = 1025;
  const double decay = 0.99;
  const auto p0 = Random(7, kBF16).Vector(n), gradients = Random(8, kF32).Vector(n);
  for (const DType master : {kF32, kBF16}) {
    const View p = Input({n}, p0, master), g = Input({n}, gradients, kF32), one = One();
    const View m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16);
    const View rules = Rules({{0, n, 0.1, 1, kTensor, 0}});
    std::vector<double> want = Random(9, kF32).Vector(n);
    const View average = Input({n}, want, kF32), copy = Output({n}, kBF16);
    for (const int64_t step : {1, 2, 3}) {
      const View factors = Factors(0.01, step);
      Run([&](Stream& s) {
        AdamW(s, {}, rules, factors, one, g, p, m, v,
              {.seed = kSeed, .copy = copy, .average = average, .decay = decay});
      });
      const auto now = Get(p);
      for (int64_t i = 0; i < n; ++i) {
        const auto a = static_cast<float>(want[i]);
        want[i] = std::fma(static_cast<float>(1 - decay), static_cast<float>(now[i]) - a, a);
      }
      EXPECT_EQ(Get(average), want) << Name(master) << ", step " << step;
    }
  }
}

TEST_P(UpdateTest, ASkippedStepChangesNothingButTheCopy) {
  const int64_t n = 5000;  // More than one block of threads.
  const auto values = Random(10, kBF16).Vector(n);
  const View p = Input({n}, values, kBF16), m = Input({n}, values, kBF16),
             v = Input({n}, values, kBF16), g = Output({n}, kF32),
             average = Input({n}, values, kF32), rules = Rules({{0, n, 0.1, 1, kTensor, 0}}),
             factors = Factors(0.5);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    for (const DType dtype : {kF32, kBF16, kF16}) {
      const View copies[] = {Output({n}, dtype), Output({n}, dtype)}, want = Output({n}, dtype);
      UpdateExtras extras{.seed = kSeed, .copy = copies[0], .average = average, .decay = 0.5};
      Run([&](Stream& s) { AdamW(s, {}, rules, factors, c, g, p, m, v, extras); });
      extras.copy = copies[1];
      Run([&](Stream& s) { Sgd(s, {}, rules, factors, c, g, p, View(), extras); });
      for (const View& view : {p, m, v, average}) EXPECT_EQ(Get(view), values);
      Run([&](Stream& s) { Cast(s, p, want); });
      for (const View& copy : copies) EXPECT_EQ(Get(copy), Get(want)) << Name(dtype);
    }
  }
}

TEST_P(UpdateTest, PaddingStaysZero) {
  const int64_t n = 100;
  const View g = Input({n}, std::vector<double>(n), kF32), p = Accumulated({n}, 0, kBF16),
             m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16),
             copy = Output({n}, kF16), average = Accumulated({n}, 0, kF32), one = One();
  const View rules = Rules({{5, 20, 1, 1, kTensor, 0}}), factors = Factors(0.5);
  Run([&](Stream& s) {
    AdamW(s, {}, rules, factors, one, g, p, m, v,
          {.seed = kSeed, .copy = copy, .average = average, .decay = 0.9});
  });
  for (const View& view : {p, m, v, copy, average}) {
    for (const double d : Get(view)) EXPECT_TRUE(d == 0 && !std::signbit(d));
  }
}

TEST_P(UpdateTest, RefusesWrongExtras) {
  const View p = Output({4}), g = Output({4}), b = Output({4}, kBF16), c = Output({1}, kF32);
  const View rules = Rules({}), factors = Factors(0.5), average = Output({4}, kF32);
  const auto call = [&](const UpdateExtras& extras) {
    return [=](Stream& s) { Sgd(s, {.momentum = 0.9}, rules, factors, c, g, p, b, extras); };
  };
  EXPECT_NO_THROW(Run(call({.copy = Output({4}, kF16), .average = average, .decay = 0.5})));
  ExpectRefused(call({.copy = Output({3}, kBF16)}), "[sgd] copy is bf16 [3]");
  ExpectRefused(call({.copy = factors}), "copy is uint8");
  ExpectRefused(call({.copy = p}), "p and copy overlap");
  ExpectRefused(call({.copy = average, .average = average}), "copy and average overlap");
  ExpectRefused(call({.average = Output({5}, kF32)}), "average is fp32 [5]");
  ExpectRefused(call({.average = Output({4}, kBF16)}), "average is bf16 [4]");
  ExpectRefused(call({.average = average, .decay = 1}), "decay, want in [0, 1)");
  ExpectRefused(call({.average = average, .decay = -0.1}), "decay");
}

// The costs that the planner and the simulator read.
TEST_P(UpdateTest, CostsWhatItReadsAndWrites) {
  const int64_t n = 64;
  const View p = Accumulated({n}, 0, kBF16), m = Accumulated({n}, 0, kBF16),
             v = Accumulated({n}, 0, kBF16), g = Accumulated({n}, 0, kF32), one = One(),
             copy = Output({n}, kF16), average = Accumulated({n}, 0, kF32);
  const View rules = Rules({}), factors = Factors(0.5);
  Run([&](Stream& s) { AdamW(s, {}, rules, factors, one, g, p, m, v); });
  const double block = sizeof(UpdateFactors) + sizeof(float);
  EXPECT_EQ(cost().flops, 16 * n);
  EXPECT_EQ(cost().bytes_read, 10 * n + block);
  EXPECT_EQ(cost().bytes_written, 6 * n);
  Run([&](Stream& s) {
    AdamW(s, {}, rules, factors, one, g, p, m, v, {.copy = copy, .average = average});
  });
  EXPECT_EQ(cost().flops, 19 * n);
  EXPECT_EQ(cost().bytes_read, 14 * n + block);
  EXPECT_EQ(cost().bytes_written, 12 * n);
}

}  // namespace
}  // namespace fsdp
