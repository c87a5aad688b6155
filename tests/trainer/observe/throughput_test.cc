#include "trainer/observe/throughput.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

class ThroughputTest : public ::testing::Test {
 protected:
  ThroughputMeter Meter(std::optional<double> peak = {}) {
    return ThroughputMeter({.clock = [this] { return now_; },
                            .flops_per_target = 1e9,
                            .devices = 4,
                            .peak_flops = peak});
  }
  double now_ = 1000;
};

TEST_F(ThroughputTest, RatesAreOfWhatWasSinceTheLastTake) {
  ThroughputMeter meter = Meter(/*peak=*/2e12);
  now_ += 8;
  const auto rates = meter.Take(/*steps=*/4, /*targets=*/16000, now_);
  EXPECT_EQ(rates.step_time_s, 2);
  EXPECT_EQ(rates.targets_per_s, 2000);
  EXPECT_DOUBLE_EQ(rates.tflops_per_device, 0.5);  // 2000 tokens/s * 1e9 / 4 devices.
  EXPECT_DOUBLE_EQ(rates.mfu.value(), 0.25);
  now_ += 1;
  EXPECT_EQ(meter.Take(1, 500, now_).targets_per_s, 500);
  EXPECT_FALSE(Meter().Take(1, 1, now_).mfu.has_value());
}

TEST_F(ThroughputTest, PausesDoNotCount) {
  ThroughputMeter meter = Meter();
  now_ += 1;
  meter.Pause();
  now_ += 100;
  meter.Continue();
  now_ += 2;
  meter.Pause();
  now_ += 50;
  EXPECT_EQ(meter.Take(1, 30, now_).step_time_s, 3);  // Taken while paused: still paused behind it.
  now_ += 50;
  meter.Continue();
  now_ += 4;
  EXPECT_EQ(meter.Take(1, 30, now_).step_time_s, 4);
}

// A host that runs two steps ahead reads the last two at once.
TEST_F(ThroughputTest, StepsTakeUntilTheirEndWheneverTheyAreRead) {
  ThroughputMeter meter = Meter();
  const double began = now_;
  now_ += 30;
  EXPECT_EQ(meter.Take(1, 1, began + 10).step_time_s, 10);
  EXPECT_EQ(meter.Take(1, 1, began + 22).step_time_s, 12);
  meter.Pause();
  now_ += 5;
  meter.Continue();
  now_ += 10;
  EXPECT_EQ(meter.Take(1, 1, began + 44).step_time_s,
            8 + 9);  // Idle time before the pause counts.
}

TEST_F(ThroughputTest, TimeLeftForgetsTheFirstAndFollowsTheRest) {
  ThroughputMeter meter = Meter();
  const auto take = [&](double seconds) {
    now_ += seconds;
    meter.Take(1, 1, now_);
  };
  EXPECT_EQ(meter.TimeLeft(10), -1);
  take(9);
  EXPECT_EQ(meter.TimeLeft(10), 90);  // All there is to go by.
  take(1);
  EXPECT_EQ(meter.TimeLeft(10), 10);
  take(2);
  EXPECT_EQ(meter.TimeLeft(8), 9);  // 1 + (2 - 1) / 8 a step.
  EXPECT_EQ(meter.TimeLeft(0), 0);
}

using ThroughputDeathTest = ThroughputTest;

TEST_F(ThroughputDeathTest, StandingClockAndWrongArguments) {
  ThroughputMeter meter = Meter(1e12);
  const auto rates = meter.Take(1, 100, now_);
  EXPECT_EQ(rates.targets_per_s, 0);
  EXPECT_EQ(rates.mfu.value(), 0);
  EXPECT_THROW(meter.Take(0, 1, now_), std::invalid_argument);
  EXPECT_THROW(ThroughputMeter({}), std::invalid_argument);
  EXPECT_THROW(Meter(/*peak=*/0.0), std::invalid_argument);
  EXPECT_DEATH(meter.Continue(), "running_");
}

}  // namespace
}  // namespace fsdp
