#include "trainer/ops/ema.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/same_bits.h"

namespace fsdp {
namespace {

class EmaTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(EmaTest);

// decay e + (1 - decay) p, in float64.
TEST_P(EmaTest, FollowsTheMean) {
  constexpr int kSteps = 6;
  for (const int64_t n : {1, 7, 300, 4099}) {
    for (const double decay : {0.0, 0.9, 0.999}) {
      Random random(n);
      std::vector<double> want = random.Vector(n);
      const View e = Input({n}, want), p = Output({n}), c = Input({1}, {0.25});
      for (int step = 0; step < kSteps; ++step) {
        const auto now = random.Vector(n);
        Set(p, now);
        for (int64_t i = 0; i < n; ++i) want[i] = decay * want[i] + (1 - decay) * now[i];
        Run([&](Stream& stream) { Ema(stream, decay, c, p, e); });
        EXPECT_EQ(Get(p), now);
      }
      EXPECT_TRUE(AllNear(Get(e), want, Tolerance(DType::kFloat32, kSteps))) << n << " " << decay;
      Clear();
    }
  }
}

TEST_P(EmaTest, CoefficientThatIsNotFiniteSkips) {
  Random random(1);
  const auto before = random.Vector(21);
  const View e = Input({21}, before), p = Input({21}, random.Vector(21));
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad});
    Run([&](Stream& stream) { Ema(stream, 0.5, c, p, e); });
    EXPECT_EQ(Get(e), before);
  }
}

TEST_P(EmaTest, PaddingStaysZero) {
  const std::vector<double> zero(33);
  const View e = Input({33}, zero), p = Input({33}, zero), c = Input({1}, {1});
  Run([&](Stream& stream) { Ema(stream, 0.9, c, p, e); });
  for (const double d : Get(e)) EXPECT_TRUE(d == 0 && !std::signbit(d));
}

TEST_P(EmaTest, RefusesWrongArguments) {
  const View e = Output({4}), p = Output({4}), c = Output({1});
  ExpectRefused([&](Stream& s) { Ema(s, 1, c, p, e); }, "[ema] decay");
  ExpectRefused([&](Stream& s) { Ema(s, -0.1, c, p, e); }, "[ema] decay");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, c, Output({5}), e); }, "p is fp32 [5]");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, p, p, e); }, "coefficient");
  ExpectRefused([&](Stream& s) { Ema(s, 0.9, c, e, e); }, "overlap");
}

TEST(Ema, BitsDoNotDependOnThreads) {
  Random random(2);
  auto p = Floats(random.Vector(9001));
  std::vector<float> c = {1};
  const auto before = Floats(random.Vector(9001));
  ExpectSameBits([&](Stream& stream) {
    auto e = before;
    Ema(stream, 0.99, ViewOf(c), ViewOf(p), ViewOf(e));
    stream.Synchronize();
    return e;
  });
}

}  // namespace
}  // namespace fsdp
