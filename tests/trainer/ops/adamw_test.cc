#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update.h"

namespace fsdp {
namespace {

constexpr int kSteps = 6;

// torch.optim.AdamW's documented algorithm (amsgrad and maximize off), in float64.
struct Oracle {
  std::vector<double> p, m, v;

  void Step(const AdamWOptions& o, double rate, int step, const std::vector<ElementRule>& rules,
            double coefficient, const std::vector<double>& gradients) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = coefficient * gradients[i];
      ElementRule rule;
      for (const ElementRule& r : rules) {
        if (r.begin <= static_cast<int64_t>(i) && static_cast<int64_t>(i) < r.end) rule = r;
      }
      const double lr = rate * rule.lr_scale;
      p[i] -= lr * rule.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, step));
      p[i] -= lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

std::vector<ElementRule> SomeRules(int64_t n) {
  return {{0, n / 5, 0.5}, {n / 3, n / 2, 0.25, 0.125}, {n / 2, n / 2 + n / 7, 0, 3}};
}

class AdamWTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors(const AdamWOptions& o, double lr, int64_t step) {
    const UpdateFactors factors = FactorsAt(lr, o.beta1, o.beta2, step);
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
};
FSDP_INSTANTIATE_OP_TEST(AdamWTest, kF32, kBF16);  // Dtypes of master and state.

// Gradients of order 8 make m and v of order one, so that the tolerance means something for them.
// In bf16 each step moves each of the three by less than one Epsilon of its size, which is below 8.
TEST_P(AdamWTest, FollowsTorch) {
  const DType other = dtype() == kF32 ? kBF16 : kF32;
  struct Row {
    int64_t n;
    DType gradient, states;
  };
  for (const auto& [n, gradient, states] : {Row{1, kF32, dtype()}, Row{7, kBF16, dtype()},
                                            Row{300, kF16, other}, Row{4099, kF32, dtype()}}) {
    const double tolerance =
        dtype() == kF32 && states == kF32 ? Tolerance(kF32, kSteps) : 8 * kSteps * Epsilon(kBF16);
    Random random(n, kBF16);
    const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3};
    const auto rules = SomeRules(n);
    const View table = Rules(rules);
    const double coefficient = RoundTo(kF32, 0.7);
    Oracle want{random.Vector(n), std::vector<double>(n), std::vector<double>(n)};
    const View p = Input({n}, want.p), m = Input({n}, want.m, states),
               v = Input({n}, want.v, states);
    const View c = Input({1}, {coefficient}, kF32), g = Output({n}, gradient);
    for (int step = 1; step <= kSteps; ++step) {
      const View factors = Factors(options, 0.03, step);
      const auto gradients = RoundTo(gradient, random.Vector(n, -8, 8));
      Set(g, gradients);
      want.Step(options, 0.03, step, rules, coefficient, gradients);
      Run([&](Stream& stream) { AdamW(stream, options, table, factors, c, g, p, m, v); });
    }
    EXPECT_TRUE(AllNear(Get(p), want.p, tolerance)) << n;
    EXPECT_TRUE(AllNear(Get(m), want.m, tolerance));
    EXPECT_TRUE(AllNear(Get(v), want.v, tolerance));
    Clear();
  }
}

// Known by hand: the first step of Adam moves by lr against the gradient's sign.
TEST_P(AdamWTest, FirstStepIsTheSign) {
  const View p = Input({3}, {0, 0, 2}), g = Input({3}, {1e-3, -5, 0}, kF32);
  const View c = Input({1}, {1}, kF32), m = Accumulated({3}, 0), v = Accumulated({3}, 0);
  const AdamWOptions options{.eps = 1e-12};
  const View rules = Rules({{2, 3, 0.1}}), factors = Factors(options, 0.5, 1);
  Run([&](Stream& stream) { AdamW(stream, options, rules, factors, c, g, p, m, v); });
  EXPECT_TRUE(AllNear(Get(p), {-0.5, 0.5, 2 * (1 - 0.5 * 0.1)}, 2 * Tolerance(dtype(), 1)));
}

TEST_P(AdamWTest, CoefficientThatIsNotFiniteSkips) {
  const int64_t n = 77;
  Random random(1, dtype());
  const auto pv = random.Vector(n), mv = random.Vector(n), vv = random.Vector(n, 0, 1);
  const View p = Input({n}, pv), m = Input({n}, mv), v = Input({n}, vv);
  const View g = Output({n}, kF32);
  const View rules = Rules({{0, n, 0.1}}), factors = Factors({}, 0.5, 1);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& stream) { AdamW(stream, {}, rules, factors, c, g, p, m, v); });
    EXPECT_EQ(Get(p), pv);
    EXPECT_EQ(Get(m), mv);
    EXPECT_EQ(Get(v), vv);
  }
}

TEST_P(AdamWTest, PaddingStaysZero) {
  const int64_t n = 33;
  const std::vector<double> zero(n);
  const View p = Input({n}, zero), m = Input({n}, zero), v = Input({n}, zero);
  const View g = Input({n}, zero, kF32), c = Input({1}, {0.5}, kF32);
  for (int step = 1; step <= 3; ++step) {
    const View rules = Rules({{5, 20, 1}}), factors = Factors({}, 0.5, step);
    Run([&](Stream& stream) { AdamW(stream, {}, rules, factors, c, g, p, m, v); });
  }
  for (const View& view : {p, m, v}) {
    EXPECT_EQ(Get(view), zero);
    for (const double d : Get(view)) EXPECT_FALSE(std::signbit(d));
  }
}

TEST_P(AdamWTest, EmptyShard) {
  const View g = Input({0}, {}, kF32), none = Input({0}, {}), c = Input({1}, {1}, kF32);
  const View rules = Rules({}), factors = Factors({}, 0.5, 1);
  Run([&](Stream& stream) { AdamW(stream, {}, rules, factors, c, g, none, none, none); });
}

TEST_P(AdamWTest, RefusesWrongArguments) {
  const View p = Output({4}), m = Output({4}), v = Output({4}), g = Output({4}, kF32);
  const View c = Output({1}, kF32);
  const View rules = Rules({}), factors = Factors({}, 0.5, 1);
  const auto call = [&](const AdamWOptions& options, const View& rules, const View& factors) {
    return [=](Stream& stream) { AdamW(stream, options, rules, factors, c, g, p, m, v); };
  };
  ExpectRefused(call({.beta1 = 1}, rules, factors), "[adamw] beta1");
  ExpectRefused(call({.eps = 0}, rules, factors), "eps");
  ExpectRefused(call({.eps = 1e-60}, rules, factors), "eps");
  ExpectRefused(call({}, factors.Slice(0, 23), factors), "rules, want a table of WriteRules()");
  ExpectRefused(call({}, g, factors), "rules, want a table of WriteRules()");
  ExpectRefused(call({}, rules, g), "factors is fp32 [4]");
  ExpectRefused([&](Stream& s) { AdamW(s, {}, rules, factors, c, Output({3}), p, m, v); },
                "g is $T [3]");
  ExpectRefused([&](Stream& s) { AdamW(s, {}, rules, factors, p, g, p, m, v); },
                "coefficient is $T [4]");
  ExpectRefused([&](Stream& s) { AdamW(s, {}, rules, factors, c, factors, p, m, v); },
                "g is uint8");
  // The states are of one dtype.
  const DType other = dtype() == kF32 ? kBF16 : kF32;
  ExpectRefused([&](Stream& s) { AdamW(s, {}, rules, factors, c, g, p, m, Output({4}, other)); },
                "v is " + std::string(Name(other)) + " [4], want $T");
  ExpectDTypesRefused("adamw", [&](Stream& s) {
    const View p = Output({4}), m = Output({4}), v = Output({4});
    AdamW(s, {}, rules, factors, Output({1}, kF32), g, p, m, v);
  });
}

TEST_P(AdamWTest, NoTwoTensorsOverlap) {
  const View c = Output({1}, kF32), rules = Rules({}), factors = Factors({}, 0.5, 1);
  const char* names[] = {"p", "m", "v", "g"};
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      View t[] = {Output({4}), Output({4}), Output({4}), Output({4})};
      t[b] = t[a];
      ExpectRefused([&](Stream& s) { AdamW(s, {}, rules, factors, c, t[3], t[0], t[1], t[2]); },
                    std::string(names[a]) + " and " + names[b] + " overlap");
    }
  }
}

// Nor on how the rules cut the loop: an element's bits are its own.
TEST_P(AdamWTest, BitsDoNotDependOnThreadsOrRules) {
  const int64_t n = 9001;
  Random random(2, dtype());
  const View g = Input({n}, random.Vector(n), kF32), c = Input({1}, {0.25}, kF32);
  const auto p0 = random.Vector(n), m0 = random.Vector(n), v0 = random.Vector(n, 0, 1);
  const View p = Output({n}), m = Output({n}), v = Output({n});
  const View factors = Factors({}, 1e-3, 5);
  const auto call = [&](const View& rules) {
    Set(p, p0), Set(m, m0), Set(v, v0);
    return [=](Stream& stream) { AdamW(stream, {}, rules, factors, c, g, p, m, v); };
  };
  ExpectSameBits(call(Rules(SomeRules(n))), {p, m, v});
  Run(call(Rules({{0, n, 1}})));
  const auto one_p = Get(p), one_m = Get(m), one_v = Get(v);
  Run(call(Rules({{0, 3, 1}, {3, 14, 1, 1, 0, 3}, {14, n, 1, 1, 0, 14}})));
  EXPECT_EQ(Get(p), one_p);
  EXPECT_EQ(Get(m), one_m);
  EXPECT_EQ(Get(v), one_v);
}

}  // namespace
}  // namespace fsdp
