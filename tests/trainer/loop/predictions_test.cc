#include "trainer/loop/predictions.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(AreaUnderCurve, CountsPairsAndHalvesEqualOnes) {
  EXPECT_EQ(AreaUnderCurve({{0.1, false}, {0.9, true}}), 1);
  EXPECT_EQ(AreaUnderCurve({{0.9, false}, {0.1, true}}), 0);
  EXPECT_EQ(AreaUnderCurve({{0.5, false}, {0.5, true}, {0.5, true}}), 0.5);
  EXPECT_EQ(AreaUnderCurve({{3, true}, {1, false}, {2, true}, {2, false}}), 0.875);
  EXPECT_EQ(AreaUnderCurve({{0.5, true}, {0.7, true}}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({}), std::nullopt);
}

}  // namespace
}  // namespace fsdp
