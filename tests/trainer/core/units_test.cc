#include "trainer/core/units.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trainer/core/hex.h"

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
  EXPECT_EQ(HumanCount(9.99e15), "9990T");
  EXPECT_EQ(HumanCount(1e16), "1.00e+16");
  EXPECT_EQ(HumanCount(-1e308), "-1.00e+308");
}

TEST(Units, Rates) {
  EXPECT_EQ(HumanRate(0), "0");
  EXPECT_EQ(HumanRate(2.3e-5), "2.30e-05");
  EXPECT_EQ(HumanRate(0.0312), "0.0312");
  EXPECT_EQ(HumanRate(8.25), "8.25");
  EXPECT_EQ(HumanRate(9.997), "10.0");
  EXPECT_EQ(HumanRate(152.7), "153");
  EXPECT_EQ(HumanRate(77950), "78.0k");
  EXPECT_EQ(HumanRate(128400), "128k");
  EXPECT_EQ(HumanRate(1e300), "1.00e+300");
  EXPECT_EQ(HumanRate(NAN), "?");
}

// No number of a message is longer than a word.
TEST(Units, NumbersOfMessages) {
  EXPECT_EQ(Shortest(0.1), "0.1");
  EXPECT_EQ(Shortest(1e-9), "1e-09");
  EXPECT_EQ(Shortest(600), "600");
  EXPECT_EQ(Shortest(1e308), "1e+308");
  EXPECT_EQ(Shortest(-5e-324), "-5e-324");
  EXPECT_EQ(Shortest(-NAN), "nan");
  EXPECT_EQ(Shortest(-INFINITY), "-inf");
  EXPECT_EQ(FixedPoint(2.30258, 4), "2.3026");
  EXPECT_EQ(FixedPoint(9999999.5, 1), "9999999.5");
  EXPECT_EQ(FixedPoint(3.4e38, 4), "3.4000e+38");
  EXPECT_EQ(FixedPoint(-1e308, 4), "-1.0000e+308");
  EXPECT_EQ(FixedPoint(-NAN, 4), "nan");
  EXPECT_EQ(FixedPoint(INFINITY, 4), "inf");
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
  EXPECT_EQ(HumanDuration(9.9e8), "11458d08h");
  EXPECT_EQ(HumanDuration(1e9), "31.7 y");
  EXPECT_EQ(HumanDuration(1e308), "3.17e+300 y");
}

TEST(Hex, HasSixteenDigits) {
  EXPECT_EQ(ToHex(0), "0000000000000000");
  EXPECT_EQ(ToHex(0xfedcba9876543210), "fedcba9876543210");
}

}  // namespace
}  // namespace fsdp
