#include "trainer/ops/element_ranges.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

std::string Runs(const std::vector<ElementRange>& ranges, int64_t begin, int64_t end) {
  std::string out;
  ForEachRun(ranges, begin, end, [&](int64_t a, int64_t b, bool inside) {
    out += inside ? '+' : '-';
    out += std::to_string(a) + ":" + std::to_string(b) + " ";
  });
  return out;
}

TEST(ElementRanges, RunsCoverEachElementOnce) {
  const std::vector<ElementRange> ranges = {{2, 5}, {5, 6}, {7, 7}, {8, 12}};
  EXPECT_EQ(Runs(ranges, 0, 15), "-0:2 +2:5 +5:6 -6:8 +8:12 -12:15 ");
  EXPECT_EQ(Runs(ranges, 3, 9), "+3:5 +5:6 -6:8 +8:9 ");
  EXPECT_EQ(Runs(ranges, 6, 8), "-6:8 ");
  EXPECT_EQ(Runs(ranges, 9, 11), "+9:11 ");
  EXPECT_EQ(Runs(ranges, 12, 12), "");
  EXPECT_EQ(Runs({}, 3, 9), "-3:9 ");
}

TEST(ElementRanges, RefusesDisorder) {
  const Arguments args("op");
  const auto check = [&](const std::vector<ElementRange>& ranges) {
    CheckRanges(args, ranges, 10);
  };
  EXPECT_NO_THROW(check({}));
  EXPECT_NO_THROW(check({{0, 4}, {4, 10}}));
  EXPECT_THROW(check({{-1, 4}}), std::invalid_argument);
  EXPECT_THROW(check({{4, 3}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 4}, {3, 5}}), std::invalid_argument);
  EXPECT_THROW(check({{0, 11}}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
