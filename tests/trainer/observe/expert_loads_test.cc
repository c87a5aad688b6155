#include "trainer/observe/expert_loads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "trainer/observe/metrics.h"

namespace fsdp {
namespace {

TEST(ExpertLoads, AreOfTheWorstAndOfAll) {
  // Four experts: loads, sums of f, and sums of weights, aux and z.
  const std::vector<float> even = {2, 2, 2, 2, 0, 0, 0, 0, 4, 8, 2};
  const std::vector<float> skewed = {6, 0, 2, 0, 0, 0, 0, 0, 4, 12, 6};
  const auto loads = LoadsOf({even, skewed});
  ASSERT_TRUE(loads);
  EXPECT_EQ(loads->rows, 8);
  EXPECT_EQ(loads->max_load, 3);
  EXPECT_EQ(LoadsOf({skewed, even})->max_load, 3);
  EXPECT_EQ(loads->unused, 2);
  const double two = -(0.75 * std::log(0.75) + 0.25 * std::log(0.25)) / std::log(4.0);
  EXPECT_NEAR(loads->entropy, (1 + two) / 2, 1e-12);
  EXPECT_NEAR(loads->aux_loss, (2.0 + 3.0) / 2, 1e-12);
  EXPECT_NEAR(loads->z_loss, (0.5 + 1.5) / 2, 1e-12);
  EXPECT_EQ(ToJson(ExpertsRecord{7, loads->loads}),
            R"({"kind": "experts", "step": 7, "loads": [[2, 2, 2, 2], [6, 0, 2, 0]]})");
}

TEST(ExpertLoads, OfNothingAreNoNumbersThatAreNotOne) {
  EXPECT_FALSE(LoadsOf({}));
  const std::vector<float> none(11, 0), single = {5, 5, 1, 1, 0};
  const auto loads = LoadsOf({none});
  EXPECT_EQ(loads->max_load, 0);
  EXPECT_EQ(loads->unused, 4);
  EXPECT_EQ(loads->entropy, 0);
  EXPECT_EQ(loads->aux_loss, 0);
  EXPECT_EQ(LoadsOf({single})->entropy, 1);
}

}  // namespace
}  // namespace fsdp
