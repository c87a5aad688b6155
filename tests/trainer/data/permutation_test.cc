#include "trainer/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace fsdp {
namespace {

// Pearson's statistic of `seen` against equal counts, in standard deviations from its mean: about a
// normal variable for many cells.
double ChiSquareScore(const std::map<std::vector<int64_t>, int>& seen, int cells, int draws) {
  const double expected = static_cast<double>(draws) / cells;
  double sum = 0;
  int hit = 0;
  for (const auto& [cell, count] : seen) sum += std::pow(count - expected, 2) / expected, ++hit;
  sum += (cells - hit) * expected;
  return (sum - (cells - 1)) / std::sqrt(2.0 * (cells - 1));
}

TEST(Permutation, IsOneForEverySmallSize) {
  for (int64_t n = 1; n <= 300; ++n) {
    const Permutation permutation(n, /*seed=*/7, /*tweak=*/static_cast<uint64_t>(n % 3));
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t to = permutation(i);
      ASSERT_TRUE(to >= 0 && to < n) << n;
      ASSERT_FALSE(seen[static_cast<size_t>(to)]) << n;
      seen[static_cast<size_t>(to)] = true;
    }
  }
}

TEST(Permutation, IsOneForLargerSizes) {
  for (const int64_t n : {4095, 4096, 4097, 65537}) {
    const Permutation permutation(n, 1, 0);
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) seen.at(static_cast<size_t>(permutation(i))) = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), n);
  }
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  for (const int64_t n : {(int64_t{1} << 40) + 1, int64_t{1} << 62}) {
    const Permutation permutation(n, 1, 0);
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_LT(permutation(n - 1 - i), n);
      EXPECT_GE(permutation(n - 1 - i), 0);
      EXPECT_NE(permutation(i), permutation(i + 1));
    }
  }
  EXPECT_THROW(Permutation(0, 1, 0), std::invalid_argument);
  EXPECT_THROW(Permutation((int64_t{1} << 62) + 1, 1, 0), std::invalid_argument);
}

// All n! orders about equally often over the tweaks (epochs), which networks of 4 bits fail. Fixed
// seeds: within 6 standard deviations once is within them always.
TEST(Permutation, EveryOrderIsEquallyLikely) {
  for (const int n : {2, 3, 4, 5}) {
    const int orders = static_cast<int>(std::tgamma(n + 1));
    const int draws = orders * 200;
    std::map<std::vector<int64_t>, int> seen;
    for (int tweak = 0; tweak < draws; ++tweak) {
      const Permutation permutation(n, /*seed=*/3, static_cast<uint64_t>(tweak));
      std::vector<int64_t> order;
      for (int64_t i = 0; i < n; ++i) order.push_back(permutation(i));
      ++seen[order];
    }
    EXPECT_LT(std::abs(ChiSquareScore(seen, orders, draws)), 6) << n;
  }
}

TEST(Permutation, EveryPlaceIsEquallyLikely) {
  constexpr int kN = 37, kDraws = 37 * 200;
  for (const int64_t from : {0, 1, 17, 36}) {
    std::map<std::vector<int64_t>, int> seen;
    for (int tweak = 0; tweak < kDraws; ++tweak) {
      ++seen[{Permutation(kN, /*seed=*/11, static_cast<uint64_t>(tweak))(from)}];
    }
    EXPECT_LT(std::abs(ChiSquareScore(seen, kN, kDraws)), 6) << from;
  }
}

// Neighbours are not kept together, and neither seeds nor tweaks resemble each other: each of these
// is one agreement expected in n, Poisson with mean 1.
TEST(Permutation, NeighboursSeedsAndTweaksAreUnrelated) {
  constexpr int64_t kN = 6241;
  const Permutation a(kN, 1, 0), other_seed(kN, 2, 0), other_tweak(kN, 1, 1);
  int neighbours = 0, fixed = 0, same_seed = 0, same_tweak = 0;
  for (int64_t i = 0; i + 1 < kN; ++i) {
    neighbours += a(i + 1) == a(i) + 1;
    fixed += a(i) == i;
    same_seed += a(i) == other_seed(i);
    same_tweak += a(i) == other_tweak(i);
  }
  EXPECT_LE(neighbours, 8);
  EXPECT_LE(fixed, 8);
  EXPECT_LE(same_seed, 8);
  EXPECT_LE(same_tweak, 8);
}

}  // namespace
}  // namespace fsdp
