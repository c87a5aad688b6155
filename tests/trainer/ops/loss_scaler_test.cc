#include "trainer/ops/loss_scaler.h"

#include <vector>

#include "tests/testing/harness.h"

namespace fsdp {
namespace {

class LossScalerTest : public OpTest {
 protected:
  // The scale after each step.
  std::vector<double> Scales(const LossScalerOptions& options, const std::vector<int>& found) {
    const View state = Output({kLossScalerFloats}, kF32);
    const LossScalerState first{static_cast<float>(options.init_scale), 0};
    Run([&](Stream& s) { SetLossScaler(s, first, state); });
    std::vector<double> scales;
    for (const int count : found) {
      const View view = Input({1}, {static_cast<double>(count)}, kF32);
      Run([&](Stream& s) { UpdateLossScaler(s, options, view, state); });
      scales.push_back(Get(state)[0]);
    }
    return scales;
  }
};
FSDP_INSTANTIATE_OP_TEST(LossScalerTest, kF32);

TEST_P(LossScalerTest, BacksOffAtOnceAndGrowsAfterGoodSteps) {
  const LossScalerOptions options{.init_scale = 1024, .growth_interval = 3};
  EXPECT_EQ(Scales(options, {0, 0, 0, 0, 0, 7, 0, 0, 1, 1, 0, 0, 0, 0}),
            (std::vector<double>{1024, 1024, 2048, 2048, 2048, 1024, 1024, 1024, 512, 256, 256, 256,
                                 512, 512}));
}

TEST_P(LossScalerTest, StaysAboveItsFloorAndFinite) {
  const LossScalerOptions low{.init_scale = 5, .backoff_factor = 0.5, .min_scale = 2};
  EXPECT_EQ(Scales(low, {1, 1, 1}), (std::vector<double>{2.5, 2, 2}));
  const double most = 2e38;
  const LossScalerOptions high{.init_scale = most, .growth_interval = 1};
  const double kept = static_cast<float>(most);
  EXPECT_EQ(Scales(high, {0, 0, 1}), (std::vector<double>{kept, kept, kept / 2}));
}

TEST_P(LossScalerTest, GoesOnFromWhereItWas) {
  const LossScalerOptions options{.growth_interval = 3};
  const View state = Output({kLossScalerFloats}, kF32), none = Input({1}, {0}, kF32);
  Run([&](Stream& s) { SetLossScaler(s, {.scale = 8, .good_steps = 2}, state); });
  Run([&](Stream& s) { UpdateLossScaler(s, options, none, state); });
  EXPECT_EQ(Get(state), (std::vector<double>{16, 0}));
}

TEST_P(LossScalerTest, RefusesWrongArguments) {
  const View state = Output({2}, kF32), one = Output({1}, kF32);
  ExpectRefused([&](Stream& s) { SetLossScaler(s, {}, one); }, "[set_loss_scaler] state");
  ExpectRefused([&](Stream& s) { UpdateLossScaler(s, {}, state, state); }, "found");
  ExpectRefused([&](Stream& s) { UpdateLossScaler(s, {}, state.Slice(0, 1), state); }, "overlap");
}

}  // namespace
}  // namespace fsdp
