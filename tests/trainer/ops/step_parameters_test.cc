#include "trainer/ops/step_parameters.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/testing/harness.h"
#include "tests/trainer/ops/optimizer_blocks.h"

namespace fsdp {
namespace {

class StepParametersTest : public OpTest {
 protected:
  template <typename Block>
  View InputBlock(const Block& block) {
    return Input(BlockShape<Block>(), BytesOf(&block, 1), DType::kUInt8);
  }
  template <typename Block>
  Block GetBlock(const View& view) const {
    const std::vector<double> values = Get(view);
    std::vector<uint8_t> bytes(values.begin(), values.end());
    Block block;
    std::memcpy(&block, bytes.data(), sizeof(block));
    return block;
  }
};
FSDP_INSTANTIATE_OP_TEST(StepParametersTest, kF32);

TEST_P(StepParametersTest, InputsComeApart) {
  const View inputs = InputBlock(StepInputs{.lr = 9, .mean_scale = 1.5f, .save = 0.25f});
  const View mean_scale = Output({1}), save = Output({1});
  Run([&](Stream& stream) { UnpackStepInputs(stream, inputs, mean_scale, save); });
  EXPECT_EQ(Get(mean_scale), std::vector<double>{1.5});
  EXPECT_EQ(Get(save), std::vector<double>{0.25});
}

// The rate is the step's; the corrections are of the updates that have landed.
TEST_P(StepParametersTest, OnlyUpdatesThatLandAreCounted) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.95;
  const View state = InputBlock(StepState{}), factors = InputBlock(UpdateFactors{});
  int64_t updates = 0;
  UpdateFactors want;
  double lr = 0.5;
  for (const double coefficient : {1.0, std::nan(""), 0.25, HUGE_VAL, -HUGE_VAL, 0.0}) {
    const View inputs = InputBlock(StepInputs{.lr = lr}), c = Input({1}, {coefficient});
    Run([&](Stream& s) { DeriveUpdateFactors(s, kBeta1, kBeta2, inputs, c, state, factors); });
    if (std::isfinite(coefficient)) want = FactorsAt(lr, kBeta1, kBeta2, ++updates);
    EXPECT_EQ(GetBlock<StepState>(state).updates, updates);
    const UpdateFactors got = GetBlock<UpdateFactors>(factors);
    EXPECT_EQ(got.update, want.update);
    EXPECT_EQ(got.lr, want.lr);
    if (kernel_type() == DeviceType::kCpu) {
      EXPECT_EQ(got.correction1, want.correction1);
      EXPECT_EQ(got.root_factor, want.root_factor);
    } else {  // A power of CUDA's is within two units in its last place.
      EXPECT_NEAR(got.correction1, want.correction1, 4 * std::numeric_limits<double>::epsilon());
      EXPECT_FLOAT_EQ(got.root_factor, want.root_factor);
    }
    lr /= 2;
  }
  EXPECT_EQ(updates, 3);
}

TEST_P(StepParametersTest, ACountIsSet) {
  const View state = InputBlock(StepState{.updates = 7});
  Run([&](Stream& stream) { SetUpdates(stream, 41, state); });
  EXPECT_EQ(GetBlock<StepState>(state).updates, 41);
}

TEST_P(StepParametersTest, RefusesWrongArguments) {
  const View inputs = InputBlock(StepInputs()), state = InputBlock(StepState());
  const View factors = InputBlock(UpdateFactors()), c = Output({1}), two = Output({2});
  const auto derive = [&](double beta1, View in, View of, View s, View f) {
    return [=](Stream& stream) { DeriveUpdateFactors(stream, beta1, 0.5, in, of, s, f); };
  };
  ExpectRefused(derive(1, inputs, c, state, factors), "beta1 and beta2, want in [0, 1)");
  ExpectRefused(derive(0, state, c, state, factors), "[derive_update_factors] inputs is uint8 [8]");
  ExpectRefused(derive(0, inputs, two, state, factors), "coefficient is fp32 [2]");
  ExpectRefused(derive(0, inputs, c, inputs, factors), "state is uint8");
  ExpectRefused(derive(0, inputs, c, state, state), "factors is uint8 [8]");
  ExpectRefused([&](Stream& s) { SetUpdates(s, -1, state); }, "[set_updates] updates");
  ExpectRefused([&](Stream& s) { SetUpdates(s, 1, inputs); }, "state is uint8");
  ExpectRefused([&](Stream& s) { UnpackStepInputs(s, inputs, two, c); }, "mean_scale is fp32");
}

}  // namespace
}  // namespace fsdp
