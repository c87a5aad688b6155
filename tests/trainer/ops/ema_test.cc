#include "trainer/ops/ema.h"

#include <cmath>

#include "tests/testing/harness.h"

namespace fsdp {
namespace {

class EmaTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(EmaTest, kF32);  // Of master shards.

// decay e + (1 - decay) p, in float64.
TEST_P(EmaTest, FollowsTheMean) {
  constexpr int kSteps = 6;
  for (const int64_t n : {1, 7, 300, 4099}) {
    for (const double decay : {0.0, 0.9, 0.999}) {
      Random random(n, dtype());
      std::vector<double> want = random.Vector(n);
      const View e = Input({n}, want), p = Output({n}), c = Input({1}, {0.25}, kF32);
      for (int step = 0; step < kSteps; ++step) {
        const auto now = random.Vector(n);
        Set(p, now);
        for (int64_t i = 0; i < n; ++i) want[i] = decay * want[i] + (1 - decay) * now[i];
        Run([&](Stream& stream) { Ema(stream, decay, c, p, e); });
        EXPECT_EQ(Get(p), now);
      }
      EXPECT_TRUE(AllNear(Get(e), want, Tolerance(dtype(), kSteps))) << n << " " << decay;
      Clear();
    }
  }
}

TEST_P(EmaTest, CoefficientThatIsNotFiniteSkips) {
  Random random(1, dtype());
  const auto before = random.Vector(21);
  const View e = Input({21}, before), p = Input({21}, random.Vector(21));
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& stream) { Ema(stream, 0.5, c, p, e); });
    EXPECT_EQ(Get(e), before);
  }
}

TEST_P(EmaTest, PaddingStaysZero) {
  const std::vector<double> zero(33);
  const View e = Input({33}, zero), p = Input({33}, zero), c = Input({1}, {1}, kF32);
  Run([&](Stream& stream) { Ema(stream, 0.9, c, p, e); });
  for (const double d : Get(e)) EXPECT_TRUE(d == 0 && !std::signbit(d));
}

TEST_P(EmaTest, RefusesWrongArguments) {
  const View e = Output({4}), p = Output({4}), c = Output({1}, kF32);
  ExpectRefused([&](Stream& s) { Ema(s, 1, c, p, e); }, "[ema] decay");
  ExpectRefused([&](Stream& s) { Ema(s, -0.1, c, p, e); }, "[ema] decay");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, c, Output({5}), e); }, "p is $T [5]");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, p, p, e); }, "coefficient");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, c, e, e); }, "overlap");
  ExpectDTypesRefused("ema",
                      [&](Stream& s) { Ema(s, 0.9, Output({1}, kF32), Output({4}), Output({4})); });
}

TEST_P(EmaTest, BitsDoNotDependOnThreads) {
  Random random(2, dtype());
  const View p = Input({9001}, random.Vector(9001)), e = Input({9001}, random.Vector(9001));
  const View c = Input({1}, {1}, kF32);
  ExpectSameBits([&](Stream& stream) { Ema(stream, 0.99, c, p, e); }, {e});
}

}  // namespace
}  // namespace fsdp
