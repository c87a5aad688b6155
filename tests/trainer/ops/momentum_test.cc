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

class MomentumTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors() {
    const UpdateFactors factors;
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
};
FSDP_INSTANTIATE_OP_TEST(MomentumTest, kF32, kBF16);  // Dtypes of the state.

// torch.optim.Muon: buf.lerp_(grad, 1 - momentum); update = grad.lerp(buf, momentum), or buf.
TEST_P(MomentumTest, FollowsTorch) {
  constexpr int kSteps = 5;
  constexpr double kMomentum = 0.9;
  for (const bool nesterov : {true, false}) {
    for (const auto& [n, gradient] :
         {std::pair<int64_t, DType>(1, kF32), {7, kBF16}, {300, kF16}, {4099, kF32}}) {
      Random random(n, kBF16);
      const double coefficient = RoundTo(kF32, 0.7);
      std::vector<double> want = random.Vector(n), update(n);
      const View m = Input({n}, want), u = Output({n}, kF32), g = Output({n}, gradient);
      const View c = Input({1}, {coefficient}, kF32), rules = Rules({{0, n}}), factors = Factors();
      for (int step = 1; step <= kSteps; ++step) {
        const auto gradients = RoundTo(gradient, random.Vector(n));
        Set(g, gradients);
        for (int64_t i = 0; i < n; ++i) {
          const double scaled = coefficient * gradients[i];
          want[i] += (1 - kMomentum) * (scaled - want[i]);
          update[i] = nesterov ? scaled + kMomentum * (want[i] - scaled) : want[i];
        }
        Run([&](Stream& stream) {
          Momentum(stream, {kMomentum, nesterov}, /*seed=*/1, rules, factors, c, g, m, u);
        });
      }
      const double tolerance =
          dtype() == kF32 ? Tolerance(kF32, kSteps) : 8 * kSteps * Epsilon(kBF16);
      EXPECT_TRUE(AllNear(Get(m), want, tolerance)) << n << " " << nesterov;
      EXPECT_TRUE(AllNear(Get(u), update, tolerance)) << n << " " << nesterov;
      Clear();
    }
  }
}

TEST_P(MomentumTest, CoefficientThatIsNotFiniteSkips) {
  const int64_t n = 21;
  Random random(1, dtype());
  const auto before = random.Vector(n);
  const View m = Input({n}, before), u = Input({n}, std::vector<double>(n, 3), kF32);
  const View g = Output({n}, kF32), rules = Rules({{0, n}}), factors = Factors();
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& stream) { Momentum(stream, {}, 1, rules, factors, c, g, m, u); });
    EXPECT_EQ(Get(m), before);
    EXPECT_EQ(Get(u), std::vector<double>(n, 3));
  }
}

TEST_P(MomentumTest, RefusesWrongArguments) {
  const View m = Output({4}), g = Output({4}, kF32), u = Output({4}, kF32), c = Output({1}, kF32);
  const View rules = Rules({}), factors = Factors();
  const auto call = [=](const MomentumOptions& options, const View& update) {
    return [=](Stream& s) { Momentum(s, options, 1, rules, factors, c, g, m, update); };
  };
  ExpectRefused(call({.momentum = 1}, u), "[momentum] momentum");
  ExpectRefused(call({}, Output({4}, kBF16)), "u is bf16");
  ExpectRefused(call({}, g), "p and g overlap");
}

}  // namespace
}  // namespace fsdp
