#include "trainer/ops/sgd.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/same_bits.h"
#include "tests/trainer/ops/optimizer_blocks.h"

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
FSDP_INSTANTIATE_OP_TEST(SgdTest);

TEST_P(SgdTest, FollowsTorch) {
  for (const int64_t n : {1, 7, 300, 4099}) {
    for (const double momentum : {0.0, 0.9}) {
      Random random(n);
      const SgdOptions options{.momentum = momentum};
      const double coefficient = RoundTo(DType::kFloat32, 0.7);
      const ElementRule rule{n / 4, n - n / 3, 0.3, 2.5};
      const View rules = Rules({rule}), factors = Factors(0.1);
      Oracle want{random.Vector(n), std::vector<double>(n)};
      const View p = Input({n}, want.p), c = Input({1}, {coefficient}), g = Output({n});
      const View b = momentum == 0 ? View() : Input({n}, want.b);
      for (int step = 1; step <= kSteps; ++step) {
        const auto gradients = random.Vector(n);
        Set(g, gradients);
        want.Step(options, 0.1, rule, coefficient, gradients);
        Run([&](Stream& stream) { Sgd(stream, options, rules, factors, c, g, p, b); });
      }
      const double tolerance = Tolerance(DType::kFloat32, kSteps);
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
  Random random(1);
  const auto pv = random.Vector(n), bv = random.Vector(n);
  const View p = Input({n}, pv), b = Input({n}, bv), g = Output({n});
  const View rules = Rules({{0, n}}), factors = Factors(0.5);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad});
    Run([&](Stream& stream) { Sgd(stream, {.momentum = 0.9}, rules, factors, c, g, p, b); });
    Run([&](Stream& stream) { Sgd(stream, {}, rules, factors, c, g, p, View()); });
    EXPECT_EQ(Get(p), pv);
    EXPECT_EQ(Get(b), bv);
  }
}

TEST_P(SgdTest, PaddingStaysZero) {
  const std::vector<double> zero(33);
  const View p = Input({33}, zero), b = Input({33}, zero), g = Input({33}, zero);
  const View c = Input({1}, {0.5});
  const View rules = Rules({{5, 20, 3}}), factors = Factors(1);
  for (int step = 0; step < 3; ++step) {
    Run([&](Stream& stream) { Sgd(stream, {.momentum = 0.9}, rules, factors, c, g, p, b); });
  }
  for (const View& view : {p, b}) {
    for (const double d : Get(view)) EXPECT_TRUE(d == 0 && !std::signbit(d));
  }
}

TEST_P(SgdTest, RefusesWrongArguments) {
  const View p = Output({4}), g = Output({4}), b = Output({4}), c = Output({1});
  const View rules = Rules({}), factors = Factors(0.5);
  const auto call = [&](const SgdOptions& options, const View& b) {
    return [=](Stream& stream) { Sgd(stream, options, rules, factors, c, g, p, b); };
  };
  ExpectRefused(call({.momentum = 1}, b), "[sgd] momentum");
  ExpectRefused(call({.momentum = 0.9}, View()), "b is");
  ExpectRefused(call({.momentum = 0}, b), "want View() without momentum");
  ExpectRefused(call({.momentum = 0.9}, g), "b and g overlap");
  ExpectRefused(call({.momentum = 0.9}, p), "b and p overlap");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, factors, c, p, p, View()); }, "p and g overlap");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, factors.Slice(0, 3), factors, c, g, p, View()); },
                "rules, want a table");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, c, c, g, p, View()); }, "factors is fp32 [1]");
  ExpectRefused([&](Stream& s) { Sgd(s, {}, rules, factors, c, Output({5}), p, View()); },
                "g is fp32 [5]");
}

TEST(Sgd, BitsDoNotDependOnThreadsOrRules) {
  const int64_t n = 9001;
  Random random(2);
  auto g = Floats(random.Vector(n));
  std::vector<float> c = {0.25f};
  const auto p0 = Floats(random.Vector(n)), b0 = Floats(random.Vector(n));
  UpdateFactors factors{.lr = 1e-3};
  const auto run = [&](Stream& stream, std::vector<ElementRule> rules) {
    auto p = p0, b = b0;
    const View table = ViewOfBytes(rules.data(), rules.size()), of = ViewOfBytes(&factors, 1);
    Sgd(stream, {.momentum = 0.9}, table, of, ViewOf(c), ViewOf(g), ViewOf(p), ViewOf(b));
    Sgd(stream, {}, table, of, ViewOf(c), ViewOf(g), ViewOf(p), View());
    stream.Synchronize();
    p.insert(p.end(), b.begin(), b.end());
    return p;
  };
  ExpectSameBits([&](Stream& stream) { return run(stream, {{5, 4000, 0.1}, {6000, n, 0.1}}); });
  CpuDevice device;
  const auto stream = device.CreateStream("stream");
  EXPECT_TRUE(
      SameBits(run(*stream, {{0, n, 1}}), run(*stream, {{0, 3, 1}, {3, 14, 1}, {14, n, 1}})));
}

}  // namespace
}  // namespace fsdp
