#include "trainer/nn/eval_metric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace fsdp {
namespace {

TEST(EvalMetric, PerplexityAndAccuracy) {
  EXPECT_STREQ(kPerplexity.name, "perplexity");
  EXPECT_FALSE(kPerplexity.has_sum);
  EXPECT_EQ(kPerplexity.value(1.5, 0), std::exp(1.5));
  EXPECT_EQ(kPerplexity.value(1000, 0), HUGE_VAL);
  EXPECT_STREQ(kAccuracy.name, "accuracy");
  EXPECT_TRUE(kAccuracy.has_sum);
  EXPECT_EQ(kAccuracy.value(1.5, 0.25), 0.25);
}

// 1 where every prediction is the mean label, less where it is better.
TEST(EvalMetric, NormalizedEntropyIsOfTheMeanLabel) {
  EXPECT_STREQ(kNormalizedEntropy.name, "normalized_entropy");
  EXPECT_TRUE(kNormalizedEntropy.has_sum);
  for (const double p : {1e-9, 0.01, 0.25, 0.5, 0.9, 1 - 1e-9}) {
    const double entropy = -(p * std::log(p) + (1 - p) * std::log1p(-p));
    EXPECT_NEAR(*kNormalizedEntropy.value(entropy, p), 1, 1e-12) << p;
    EXPECT_NEAR(*kNormalizedEntropy.value(0.75 * entropy, p), 0.75, 1e-12) << p;
  }
  EXPECT_NEAR(*kNormalizedEntropy.value(0.5, 0.25), 0.5 / 0.5623351446188083, 1e-12);
  for (const double p : {0.0, 1.0, -0.25, 1.25, std::nan("")}) {
    EXPECT_EQ(kNormalizedEntropy.value(0.5, p), std::nullopt) << p;
  }
}

}  // namespace
}  // namespace fsdp
