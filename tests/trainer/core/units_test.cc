#include "trainer/core/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(int64_t{20} << 20), "20.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{234} << 30), "234 GiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 50), "5.00 PiB");
  // Three digits, as they are rounded.
  EXPECT_EQ(HumanBytes(10228), "9.99 KiB");
  EXPECT_EQ(HumanBytes(10235), "10.0 KiB");
  EXPECT_EQ(HumanBytes(102348), "99.9 KiB");
  EXPECT_EQ(HumanBytes(102350), "100 KiB");
}

TEST(Units, Counts) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(999.7), "1.00k");
  EXPECT_EQ(HumanCount(12345), "12.3k");
  EXPECT_EQ(HumanCount(9999), "10.0k");
  EXPECT_EQ(HumanCount(999999), "1.00M");
  EXPECT_EQ(HumanCount(124439808), "124M");
  EXPECT_EQ(HumanCount(7e9), "7.00B");
  EXPECT_EQ(HumanCount(NAN), "?");
}

TEST(Units, Durations) {
  EXPECT_EQ(HumanDuration(0), "0.00 ms");
  EXPECT_EQ(HumanDuration(0.0123), "12.3 ms");
  EXPECT_EQ(HumanDuration(0.9996), "1.00 s");
  EXPECT_EQ(HumanDuration(59.94), "59.9 s");
  EXPECT_EQ(HumanDuration(59.96), "1m00s");
  EXPECT_EQ(HumanDuration(185), "3m05s");
  EXPECT_EQ(HumanDuration(3599.6), "1h00m");
  EXPECT_EQ(HumanDuration(7620), "2h07m");
  EXPECT_EQ(HumanDuration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(HumanDuration(-1), "?");
  EXPECT_EQ(HumanDuration(INFINITY), "?");
}

}  // namespace
}  // namespace fsdp
