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

TEST(Units, ThousandsApart) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
  EXPECT_EQ(Grouped(-123), "-123");
  EXPECT_EQ(Grouped(-1234), "-1,234");
}

TEST(Units, OneIsSingular) {
  EXPECT_EQ(Counted(0, "step"), "0 steps");
  EXPECT_EQ(Counted(1, "step"), "1 step");
  EXPECT_EQ(Counted(12345, "token"), "12345 tokens");
}

TEST(Units, BytesAreRead) {
  EXPECT_EQ(ParseBytes("10GB"), 10'000'000'000);
  EXPECT_EQ(ParseBytes("10 gb"), 10'000'000'000);
  EXPECT_EQ(ParseBytes("512MiB"), 512 << 20);
  EXPECT_EQ(ParseBytes("1.5GiB"), 3 * (int64_t{1} << 29));
  EXPECT_EQ(ParseBytes("2kB"), 2000);
  EXPECT_EQ(ParseBytes("1TiB"), int64_t{1} << 40);
  EXPECT_EQ(ParseBytes("7"), 7);
  EXPECT_EQ(ParseBytes("7.9 B"), 7);
  for (const char* wrong : {"", "GB", "0GB", "0.9", "-1GB", "10G", "10GBs", "1e3", "10 G B", "nan",
                            "inf", "0x10", "9000000TiB"}) {
    EXPECT_EQ(ParseBytes(wrong), std::nullopt) << wrong;
  }
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
