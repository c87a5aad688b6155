#include <cmath>
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

// torch.optim.SGD's documented algorithm (dampening 0, nesterov and maximize off), in float64. Its
// buffer is the first gradient itself at the first step.
struct Oracle {
  std::vector<double> p, b;
  bool first = true;

  void Step(const SgdOptions& o, double lr, const ElementRule& rule, double coefficient,
            const std::vector<double>& gradients) {
    for (int64_t i = 0; i < static_cast<int64_t>(p.size()); ++i) {
      double g = coefficient * gradients[i];
      const bool ruled = i >= rule.begin && i < rule.end;
      if (ruled) g += rule.weight_decay * p[i];
      if (o.momentum != 0) {
        b[i] = first ? g : o.momentum * b[i] + g;
        g = b[i];
      }
      p[i] -= (ruled ? rule.lr_scale : 1) * lr * g;
    }
    first = false;
  }
};

class SgdTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors(double lr) {
    const UpdateFactors factors{.lr = lr};
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
};
FSDP_INSTANTIATE_OP_TEST(SgdTest, kF32, kBF16);  // Dtypes of master and state.

// In bf16 each step moves both by less than one Epsilon of their size, which is below 8.
TEST_P(SgdTest, FollowsTorch) {
  const DType other = dtype() == kF32 ? kBF16 : kF32;
  struct Row {
    int64_t n;
    DType gradient, state;
  };
  for (const auto& [n, gradient, state] : {Row{1, kF32, dtype()}, Row{7, kBF16, dtype()},
                                           Row{300, kF16, other}, Row{4099, kF32, dtype()}}) {
    const double tolerance =
        dtype() == kF32 && state == kF32 ? Tolerance(kF32, kSteps) : 8 * kSteps * Epsilon(kBF16);
    for (const double momentum : {0.0, 0.9}) {
      Random random(n, kBF16);
      const SgdOptions options{.momentum = momentum};
      const double coefficient = RoundTo(kF32, 0.7);
      const ElementRule rule{n / 4, n - n / 3, 0.3, 2.5};
      const View rules = Rules({rule}), factors = Factors(0.1);
      Oracle want{random.Vector(n), std::vector<double>(n)};
      const View p = Input({n}, want.p), c = Input({1}, {coefficient}, kF32);
      const View g = Output({n}, gradient), b = momentum == 0 ? View() : Input({n}, want.b, state);
      for (int step = 1; step <= kSteps; ++step) {
        const auto gradients = RoundTo(gradient, random.Vector(n));
        Set(g, gradients);
        want.Step(options, 0.1, rule, coefficient, gradients);
        Run([&](Stream& stream) { Sgd(stream, options, rules, factors, c, g, p, b); });
      }
      EXPECT_TRUE(AllNear(Get(p), want.p, tolerance)) << n << ", momentum " << momentum;
      if (momentum != 0) {
        EXPECT_TRUE(AllNear(Get(b), want.b, tolerance));
      }
      Clear();
    }
  }
}

TEST_P(SgdTest, CoefficientThatIsNotFiniteSkips) {
  const int64_t n = 21;
  Random random(1, dtype());
  const auto pv = random.Vector(n), bv = random.Vector(n);
  const View p = Input({n}, pv), b = Input({n}, bv), g = Output({n}, kF32);
  const View rules = Rules({{0, n}}), factors = Factors(0.5);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& stream) { Sgd(stream, {.momentum = 0.9}, rules, factors, c, g, p, b); });
    Run([&](Stream& stream) { Sgd(stream, {}, rules, factors, c, g, p, View()); });
    EXPECT_EQ(Get(p), pv);
    EXPECT_EQ(Get(b), bv);
  }
}

TEST_P(SgdTest, PaddingStaysZero) {
  const std::vector<double> zero(33);
  const View p = Input({33}, zero), b = Input({33}, zero), g = Input({33}, zero, kF32);
  const View c = Input({1}, {0.5}, kF32);
  const View rules = Rules({{5, 20, 3}}), factors = Factors(1);
  for (int step = 0; step < 3; ++step) {
    Run([&](Stream& stream) { Sgd(stream, {.momentum = 0.9}, rules, factors, c, g, p, b); });
  }
  for (const View& view : {p, b}) {
    for (const double d : Get(view)) EXPECT_TRUE(d == 0 && !std::signbit(d));
  }
}

TEST_P(SgdTest, RefusesWrongArguments) {
  const View p = Output({4}), g = Output({4}), b = Output({4}), c = Output({1}, kF32);
  const View rules = Rules({}), factors = Factors(0.5);
  const auto call = [&](const SgdOptions& options, const View& b) {
    return [=](Stream& stream) { Sgd(stream, options, rules, factors, c, g, p, b); };
  };
  ExpectRefused(call({.momentum = 1}, b), "[sgd] momentum");
  ExpectRefused(call({.momentum = 0.9}, View()), "b is");
  ExpectRefused(call({.momentum = 0}, b), "want View() without momentum");
  ExpectRefused(call({.momentum = 0.9}, g), "b and g overlap");
  ExpectRefused(call({.momentum = 0.9}, p), "p and b overlap");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, factors, c, p, p, View()); }, "p and g overlap");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, factors.Slice(0, 3), factors, c, g, p, View()); },
                "rules, want a table");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, c, c, g, p, View()); }, "factors is fp32 [1]");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, factors, c, Output({5}), p, View()); },
                "g is $T [5]");
  ExpectDTypesRefused("sgd", [&](Stream& s) {
    const View c = Output({1}, kF32), p = Output({4}), b = Output({4});
    Sgd(s, {.momentum = 0.9}, rules, factors, c, g, p, b);
  });
}

TEST_P(SgdTest, BitsDoNotDependOnThreadsOrRules) {
  const int64_t n = 9001;
  Random random(2, dtype());
  const View g = Input({n}, random.Vector(n), kF32), c = Input({1}, {0.25}, kF32);
  const auto p0 = random.Vector(n), b0 = random.Vector(n);
  const View p = Output({n}), b = Output({n}), factors = Factors(1e-3);
  const auto call = [&](const View& rules) {
    Set(p, p0), Set(b, b0);
    return [=](Stream& stream) {
      Sgd(stream, {.momentum = 0.9}, rules, factors, c, g, p, b);
      Sgd(stream, {}, rules, factors, c, g, p, View());
    };
  };
  ExpectSameBits(call(Rules({{5, 4000, 0.1}, {6000, n, 0.1}})), {p, b});
  Run(call(Rules({{0, n, 1}})));
  const auto one_p = Get(p), one_b = Get(b);
  Run(call(Rules({{0, 3, 1}, {3, 14, 1, 1, 0, 3}, {14, n, 1, 1, 0, 14}})));
  EXPECT_EQ(Get(p), one_p);
  EXPECT_EQ(Get(b), one_b);
}

}  // namespace
}  // namespace fsdp
