#include "trainer/observe/spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdp {
namespace {

// 1, 3, 1, 3, ...: of n of them the mean is 2 and the squares of what is left sum to n.
double Alternating(int i) { return i % 2 == 0 ? 1 : 3; }

SpikeWindow After(int steps) {
  SpikeWindow window;
  for (int i = 0; i < steps; ++i) window.Add(Alternating(i));
  return window;
}

TEST(SpikeWindow, CountsDeviationsAboveTheStepsBefore) {
  for (const int n : {32, 64, 128}) {
    const double deviation = std::sqrt(n / (n - 1.0));
    EXPECT_DOUBLE_EQ(*After(n).Add(12), 10 / deviation) << n;
    EXPECT_DOUBLE_EQ(*After(n).Add(2), 0) << n;
    EXPECT_DOUBLE_EQ(*After(n).Add(-8), -10 / deviation) << n;  // Nobody minds.
  }
}

TEST(SpikeWindow, SaysNothingOfTheFirstSteps) {
  EXPECT_EQ(After(0).Add(12), std::nullopt);
  EXPECT_EQ(After(31).Add(12), std::nullopt);
  EXPECT_TRUE(After(32).Add(12).has_value());
}

// 100 steps of another kind, then 128: they are forgotten.
TEST(SpikeWindow, ForgetsAllButTheLast128) {
  SpikeWindow window;
  for (int i = 0; i < 100; ++i) window.Add(1000.0 * i);
  for (int i = 0; i < 127; ++i) window.Add(Alternating(i));
  EXPECT_LT(*SpikeWindow(window).Add(12), 0);  // One of them is left: the mean is far above.
  window.Add(Alternating(127));
  EXPECT_DOUBLE_EQ(*window.Add(12), 10 / std::sqrt(128 / 127.0));
}

// A number counts for those behind it: a loss that stays up is no spike for long.
TEST(SpikeWindow, ASpikeIsPartOfTheStepsBefore) {
  SpikeWindow window = After(128);
  const double first = *window.Add(12), second = *window.Add(12);
  EXPECT_GT(first, 9.9);
  EXPECT_LT(second, 8);
  for (int i = 0; i < 126; ++i) window.Add(12);
  EXPECT_LT(*window.Add(12), 6);
}

TEST(SpikeWindow, Median) {
  EXPECT_EQ(SpikeWindow().Median(), 0);
  SpikeWindow window;
  for (const double value : {5, 1, 9, 3, 7}) window.Add(value);
  EXPECT_EQ(window.Median(), 5);
  EXPECT_EQ(After(129).Median(), 3);  // The last 128 are half 1, half 3: the upper of the two.
}

TEST(SpikeWindow, NumbersThatAreNotFiniteAreNone) {
  SpikeWindow window = After(128);
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(window.Add(value), std::nullopt);
  }
  EXPECT_DOUBLE_EQ(*window.Add(12), 10 / std::sqrt(128 / 127.0));
}

TEST(SpikeWindow, NumbersAllAlikeDeviateByTheirRounding) {
  const auto after = [](double like, double value) {
    SpikeWindow window;
    for (int i = 0; i < 128; ++i) window.Add(like);
    return *window.Add(value);
  };
  EXPECT_EQ(after(2, 2), 0);
  const double next = std::nextafter(2.0f, 3.0f);
  EXPECT_LE(after(2, next), 1);
  EXPECT_GT(after(2, 2.01), 1000);
  EXPECT_EQ(after(0, 0), 0);
  EXPECT_TRUE(std::isfinite(after(0, 1)));
  EXPECT_GT(after(0, 1), 1000);
}

}  // namespace
}  // namespace fsdp
