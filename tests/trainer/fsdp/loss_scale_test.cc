#include "trainer/fsdp/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp {
namespace {

TEST(FirstLossScale, IsTimesTheLargestPowerOfTwoInTheRanks) {
  const LossScalerOptions options{.init_scale = 3};
  const float want[] = {3, 6, 6, 12, 12, 12, 12, 24, 24};
  for (int ranks = 1; ranks <= 9; ++ranks) {
    EXPECT_EQ(FirstLossScale(options, ranks), want[ranks - 1]) << ranks;
    EXPECT_EQ(3 * RanksToScaleBy(ranks), want[ranks - 1]) << ranks;
  }
  EXPECT_EQ(FirstLossScale(options, 100000), 3 * 65536.0f);
}

TEST(FirstLossScale, IsFinite) {
  EXPECT_EQ(FirstLossScale({.init_scale = 0x1p125}, 1024), 0x1p127f);
  EXPECT_EQ(FirstLossScale({.init_scale = 3e38}, 8), 3e38f);
}

}  // namespace
}  // namespace fsdp
