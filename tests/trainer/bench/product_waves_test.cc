#include "trainer/bench/product_waves.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

constexpr int64_t kH100 = 132;

double Rate(int64_t m, int64_t n, int64_t k) {
  Product product;
  product.m = m, product.n = n, product.k = k;
  return ProductRateInWaves(product, 798, kH100);
}

TEST(ProductWaves, TheLargeOneHasItsRate) {
  EXPECT_DOUBLE_EQ(Rate(8192, 8192, 8192), 798);
  Product product;
  product.m = product.n = product.k = 8192;
  EXPECT_DOUBLE_EQ(ProductRateInWaves(product, 100, 7), 100);
  EXPECT_DOUBLE_EQ(Rate(128 * 132, 256 * 16, 1 << 20), 798) << "none has more";
}

// 448 tiles on 132 multiprocessors are 3.4 waves and take four.
TEST(ProductWaves, TheLastWaveTakesAsLong) {
  const double large = 8192.0 / (8192 + 192) * (64 * 32) / (16 * 132);
  const double small = 896.0 / (896 + 192) * 448 / (4 * 132);
  EXPECT_NEAR(Rate(16384, 896, 896), 798 * small / large, 1e-9);
  EXPECT_GT(Rate(16384, 896, 896), 550);
  EXPECT_LT(Rate(16384, 896, 896), 680);
  // Tiles lie the way round that wastes less; of this one no column is whole.
  EXPECT_DOUBLE_EQ(Rate(16384, 896, 896), Rate(896, 16384, 896));
  EXPECT_NEAR(Rate(16384, 1, 896), Rate(16384, 128, 896) / 128, 1e-9);
}

// Seven by four tiles would leave 104 of 132 multiprocessors idle.
TEST(ProductWaves, LongSumsAreDivided) {
  EXPECT_GT(Rate(896, 896, 16384), 600);
  EXPECT_LT(Rate(896, 896, 512), 200);
}

}  // namespace
}  // namespace fsdp
