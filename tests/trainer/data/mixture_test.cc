#include "trainer/data/mixture.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

const std::vector<std::vector<double>> kWeights = {
    {1},
    {1, 1},
    {3, 1},
    {0.9, 0.1},
    {1e-6, 1},
    {1, 1, 1},
    {0.5, 0.3, 0.15, 0.05},
    {5, 4, 3, 2, 1, 1e-3, 100},
    {std::sqrt(2), std::sqrt(3), std::sqrt(5), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
};

TEST(Mixture, SharesAreTheWeightsAfterAnyNumberOfSamples) {
  for (const std::vector<double>& weights : kWeights) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    // The documented bound: the depth of the tree.
    const double bound = std::bit_width(weights.size() - 1);
    for (const uint64_t seed : {0, 1, 2}) {
      const Mixture mixture(weights, seed);
      std::vector<int64_t> counts(weights.size());
      for (int64_t n = 0; n < 5000; ++n) {
        const Mixture::Place place = mixture(n);
        // Each source's samples in order: none twice, none left out.
        ASSERT_EQ(place.sample, counts.at(static_cast<size_t>(place.source))++);
        for (size_t k = 0; k < weights.size(); ++k) {
          const double want = static_cast<double>(n + 1) * weights[k] / sum;
          ASSERT_LE(std::abs(static_cast<double>(counts[k]) - want), bound) << n << " " << k;
        }
        if (n % 97 == 0) {
          ASSERT_EQ(mixture.Counts(n + 1), counts);
        }
      }
    }
  }
}

TEST(Mixture, AnySampleIsFoundWithoutThoseBeforeIt) {
  const RandomStream random(4, "samples");
  for (const std::vector<double>& weights : kWeights) {
    const Mixture mixture(weights, 7);
    for (uint64_t i = 0; i < 200; ++i) {
      const int64_t sample = static_cast<int64_t>(random.Below(i, uint64_t{1} << (1 + i % 61)));
      const Mixture::Place place = mixture(sample);
      EXPECT_EQ(Mixture(weights, 7)(sample), place);
      const std::vector<int64_t> before = mixture.Counts(sample),
                                 after = mixture.Counts(sample + 1);
      for (size_t k = 0; k < weights.size(); ++k) {
        EXPECT_EQ(after[k] - before[k], static_cast<int64_t>(k) == place.source ? 1 : 0);
      }
      EXPECT_EQ(before[static_cast<size_t>(place.source)], place.sample);
    }
  }
}

TEST(Mixture, TheSeedSaysWhoseTurnItIsFirst) {
  const std::vector<double> weights = {1, 9};
  std::vector<int> firsts(10);
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Mixture mixture(weights, seed);
    int64_t at = 0;
    while (mixture(at).source != 0) ++at;
    ++firsts.at(static_cast<size_t>(at));  // At most ten samples until a tenth has its turn.
  }
  for (const int count : firsts) EXPECT_NEAR(count, 100, 5 * std::sqrt(90));
}

TEST(Mixture, LongestEndsWhereASourceDoes) {
  for (const std::vector<double>& weights : kWeights) {
    const Mixture mixture(weights, 3);
    std::vector<int64_t> available;
    for (size_t k = 0; k < weights.size(); ++k) available.push_back(50 + 7 * (k % 3));
    const int64_t n = mixture.Longest(available, 1 << 30);
    const std::vector<int64_t> counts = mixture.Counts(n), more = mixture.Counts(n + 1);
    bool exhausted = false;
    for (size_t k = 0; k < weights.size(); ++k) {
      EXPECT_LE(counts[k], available[k]);
      exhausted |= more[k] > available[k];
    }
    EXPECT_TRUE(exhausted);
    EXPECT_EQ(mixture.Longest(available, n / 2), n / 2);
  }
  EXPECT_EQ(Mixture(std::vector<double>{1}, 0).Longest(std::vector<int64_t>{7}, INT64_MAX), 7);
}

TEST(Mixture, RefusesWhatIsNoWeight) {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{}, {0}, {1, -1}, {NAN}, {1, INFINITY}, {1e-30, 1}}) {
    EXPECT_THROW(Mixture(weights, 0), std::invalid_argument);
  }
  EXPECT_THROW(Mixture(std::vector<double>{1, 2}, 0)(-1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
