#include <gtest/gtest.h>

#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

constexpr int64_t kH100 = 132, kTerms = 200;
constexpr double kFast = 2048.0 / (2048 + kTerms);  // The share in whole waves of 2,048 terms.

double Rate(int64_t m, int64_t n, int64_t k, int64_t multiprocessors = kH100,
            int64_t terms = kTerms) {
  Product product;
  product.m = m, product.n = n, product.k = k;
  return ProductRateInWaves(product, 800, multiprocessors, terms);
}

TEST(ProductWaves, AHugeOneHasTheRateAndNoneHasMore) {
  EXPECT_DOUBLE_EQ(Rate(8192, 8192, 8192), 800);
  EXPECT_DOUBLE_EQ(Rate(8192, 8192, 8192, 7), 800);
  EXPECT_DOUBLE_EQ(Rate(128 * 132, 256 * 16, 1 << 20), 800);
  EXPECT_DOUBLE_EQ(Rate(128 * 132, 256, 2048), 800);
}

// A wave of whole tiles: its begin and end are all that is lost.
TEST(ProductWaves, TilesBeginAndEnd) {
  EXPECT_NEAR(Rate(128 * 132, 256, 600), 800 * 600.0 / (600 + kTerms) / kFast, 1e-9);
  EXPECT_NEAR(Rate(128 * 132, 256, 600, kH100, 0), 800, 1e-9);
  EXPECT_LT(Rate(128 * 132, 256, 600, kH100, 400), Rate(128 * 132, 256, 600));
}

// 448 tiles of 256 x 128 on 132 multiprocessors are 3.4 waves and take four; smaller tiles, 6.8 of
// seven waves, make up for a tenth of it.
TEST(ProductWaves, TheLastWaveTakesAsLong) {
  const double of_large = 448.0 / (4 * 132), of_small = 0.9 * 896 / (7 * 132);
  EXPECT_GT(of_small, of_large);
  EXPECT_NEAR(Rate(16384, 896, 896), 800 * of_small * 896 / (896 + kTerms) / kFast, 1e-9);
  EXPECT_DOUBLE_EQ(Rate(16384, 896, 896), Rate(896, 16384, 896));
  // Here no column is whole: 64 of the narrowest tile's are computed.
  EXPECT_NEAR(Rate(16384, 1, 896), Rate(16384, 64, 896) / 64, 1e-9);
}

// Few tiles leave most multiprocessors idle: smaller ones keep more of them busy, each less so.
TEST(ProductWaves, SmallProductsTakeSmallTiles) {
  EXPECT_NEAR(Rate(1024, 512, 256), 800 * 0.55 * (16 * 8 / 132.0) * 256 / (256 + kTerms) / kFast,
              1e-9);
  EXPECT_NEAR(Rate(1024, 512, 256), Rate(512, 1024, 256), 1e-9);
}

// Seven by seven tiles would leave 83 of 132 multiprocessors idle. In five parts they are two
// waves, nearly full, of 3,277 terms; the parts are added up.
TEST(ProductWaves, LongSumsAreDivided) {
  EXPECT_NEAR(Rate(896, 896, 16384),
              800 * 0.9 * 49 * 16384 / (2 * 132 * (3277 + 3.0 * kTerms)) / kFast, 1e-9);
  EXPECT_LT(Rate(896, 896, 500), Rate(896, 896, 16384) / 1.5) << "too short for two parts";
}

constexpr int64_t kGroups = 64;

double GroupRate(Product product, double expert_load = 1, int64_t terms = kTerms) {
  product.groups = kGroups;
  return ProductRateInWaves(product, 800, kH100, terms, /*at_once=*/1, expert_load);
}

// A group of 1,024 rows has 8 tiles of 128 and, on average, 127/256 of one more.
TEST(ProductWaves, GroupsHaveTilesThatAreNotFull) {
  const Product product{.m = kGroups * 1024, .n = 2048, .k = 2048};
  const double waves = 66;  // 64 (8 + 127/256) 16 tiles on 132 multiprocessors.
  EXPECT_NEAR(GroupRate(product, 1, 0),
              800 * 0.9 * kGroups * 1024 * 2048 / (waves * 132 * 128 * 128), 1e-9);
  EXPECT_DOUBLE_EQ(GroupRate(product, 8, 0), GroupRate(product, 1, 0));
}

// Small tiles where a group has few rows, one where it has the fewest, none where it has none.
TEST(ProductWaves, GroupsOfFewRowsHaveATileEach) {
  const auto rows = [](int64_t m) { return Product{.m = m, .n = 64 * 132, .k = 2048}; };
  const double tile = 800 * 0.55 / (64 * 64) / kFast * 2048 / (2048 + kTerms);  // A row of them.
  EXPECT_NEAR(GroupRate(rows(kGroups)), tile * 64 * kGroups / kGroups, 1e-9);
  EXPECT_NEAR(GroupRate(rows(16 * kGroups)), tile * 64 * 16, 1e-9);
  // 512 rows of the busiest, 8 of each other: 8.5 tiles and 63.
  EXPECT_NEAR(GroupRate(rows(16 * kGroups), 32), tile * 64 * 16 * kGroups / 72, 1e-9);
  // All rows are the busiest's.
  EXPECT_NEAR(GroupRate(rows(16 * kGroups), kGroups), tile * 64 * 16 * kGroups / 17, 1e-9);
  EXPECT_EQ(GroupRate(rows(16 * kGroups), 2 * kGroups), GroupRate(rows(16 * kGroups), kGroups));
}

// The tiles of all gradients are in flight together; each sums the rows of its group.
TEST(ProductWaves, TheBusiestGroupHasTheLongestSum) {
  const Product few{.m = 64, .n = 64, .k = kGroups * 1024, .a_transposed = true};
  EXPECT_NEAR(GroupRate(few, 1), 800 * 0.55 * kGroups / 132 * 1024 / (1024 + kTerms) / kFast, 1e-9);
  EXPECT_NEAR(GroupRate(few, 4, 0), GroupRate(few, 1, 0) / 4, 1e-9);
  const Product many{.m = 2048, .n = 1024, .k = kGroups * 1024, .a_transposed = true};
  EXPECT_DOUBLE_EQ(GroupRate(many, 8), GroupRate(many, 1));
}

}  // namespace
}  // namespace fsdp
