#include "trainer/core/check.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(CheckDeathTest, PrintsPlaceConditionValuesAndMessage) {
  EXPECT_DEATH(FSDP_CHECK(1 + 1 == 3) << "so " << 42,
               "check_test.cc:[0-9]+: broken invariant: 1 \\+ 1 == 3 so 42");
  const int have = 3, want = 4;
  EXPECT_DEATH(FSDP_CHECK_EQ(have, want) << "in all",
               "broken invariant: have == want \\(3 and 4\\) in all");
  EXPECT_DEATH(FSDP_CHECK_LE(want, have), "want <= have \\(4 and 3\\)");
  EXPECT_DEATH(FSDP_CHECK_LT(have, have), "have < have \\(3 and 3\\)");
}

TEST(Check, HoldsQuietlyAndOnce) {
  int evaluated = 0;
  FSDP_CHECK(++evaluated == 1) << "not printed";
  FSDP_CHECK_EQ(++evaluated, 2);
  FSDP_CHECK_LE(2, ++evaluated);
  EXPECT_EQ(evaluated, 3);
}

TEST(Check, IsOneStatement) {
  bool otherwise = false;
  if (false)
    FSDP_CHECK(false);
  else
    otherwise = true;
  EXPECT_TRUE(otherwise);
}

}  // namespace
}  // namespace fsdp
