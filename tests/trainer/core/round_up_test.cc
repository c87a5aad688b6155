#include "trainer/core/round_up.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fsdp {
namespace {

TEST(RoundUp, IsTheLeastMultipleThatIsEnough) {
  for (const int64_t to : {1, 3, 64, 4096}) {
    for (int64_t n = 0; n <= 3 * to; ++n) {
      const int64_t up = RoundUp(n, to);
      EXPECT_EQ(up % to, 0);
      EXPECT_GE(up, n);
      EXPECT_LT(up - n, to);
    }
  }
  // Addresses, too, whatever the type of the step.
  constexpr int64_t kPage = 4096;
  EXPECT_EQ(RoundUp<uintptr_t>(uintptr_t{1} << 63 | 1, kPage), (uintptr_t{1} << 63) + 4096);
}

}  // namespace
}  // namespace fsdp
