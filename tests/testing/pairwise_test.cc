#include "tests/testing/pairwise.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdp::testing {
namespace {

TEST(CoverPairs, EveryPairOfValuesMeets) {
  for (const std::vector<int>& levels :
       {std::vector<int>{2, 2, 2}, {4, 3, 2, 3, 4, 3, 2, 3, 2, 2}, {5, 1, 5}}) {
    const auto rows = CoverPairs(levels, 1);
    EXPECT_EQ(rows, CoverPairs(levels, 1));
    for (size_t i = 0; i < levels.size(); ++i) {
      for (size_t j = i + 1; j < levels.size(); ++j) {
        for (int a = 0; a < levels[i]; ++a) {
          for (int b = 0; b < levels[j]; ++b) {
            EXPECT_TRUE(std::any_of(
                rows.begin(), rows.end(),
                [&](const std::vector<int>& row) { return row[i] == a && row[j] == b; }))
                << i << "=" << a << " with " << j << "=" << b;
          }
        }
      }
    }
    for (const std::vector<int>& row : rows) {
      for (size_t i = 0; i < levels.size(); ++i) EXPECT_LT(row[i], levels[i]);
    }
  }
}

// The largest two settings need 16 rows; a greedy cover stays near that.
TEST(CoverPairs, NeedsFewRows) {
  EXPECT_LE(CoverPairs({4, 3, 2, 3, 4, 3, 2, 3, 2, 2}, 1).size(), 26u);
}

}  // namespace
}  // namespace fsdp::testing
