#include "trainer/data/check_row.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Ints = std::vector<int32_t>;

constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
constexpr int32_t kMin = std::numeric_limits<int32_t>::min();

struct Row {
  Ints tokens, targets;
  std::vector<float> weights;
  Ints positions;
};

Row RowOf(size_t n) {
  Row row{Ints(n, 3), Ints(n, 4), std::vector<float>(n, 1), Ints(n)};
  std::iota(row.positions.begin(), row.positions.end(), 0);
  return row;
}

// The text that CheckRow throws; empty where it throws nothing.
std::string ErrorOf(const Row& row, const RowLimits& limits = {.vocab_size = 11}) {
  try {
    CheckRow({row.tokens, row.targets, row.weights, row.positions}, limits, [](int64_t i) {
      return TokenPlace{"a.txt, token " + std::to_string(i), "sample 40", "see there"};
    });
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// At every place of rows of every length: what vectorises has ends of its own.
TEST(CheckRow, NamesTheFirstTokenOutside) {
  for (size_t n = 1; n < 40; ++n) {
    for (size_t at = 0; at < n; ++at) {
      for (const int32_t wrong : {-1, 11, kMax, kMin}) {
        Row row = RowOf(n);
        EXPECT_EQ(ErrorOf(row), "");
        row.tokens[at] = row.tokens[n - 1] = wrong;
        EXPECT_EQ(ErrorOf(row), "data: a.txt, token " + std::to_string(at) + ": token " +
                                    std::to_string(wrong) +
                                    " is outside the vocabulary of 11 tokens: see there (sample "
                                    "40)");
      }
    }
  }
  Row all = RowOf(11);
  std::iota(all.tokens.begin(), all.tokens.end(), 0);
  EXPECT_EQ(ErrorOf(all), "");
}

TEST(CheckRow, LooksAtTargetsOfWeight) {
  for (const int32_t wrong : {-1, 11, kMax, kMin}) {
    Row row = RowOf(9);
    row.targets[6] = wrong;
    EXPECT_EQ(ErrorOf(row), "data: a.txt, token 7: token " + std::to_string(wrong) +
                                " is outside the vocabulary of 11 tokens: see there (sample 40)");
    row.weights[6] = 0;
    EXPECT_EQ(ErrorOf(row), "");
    row.weights[6] = 0.5f;
    EXPECT_NE(ErrorOf(row), "");
  }
}

TEST(CheckRow, PositionsGoUpOrBeginAgain) {
  const auto check = [](const Ints& positions) {
    Row row = RowOf(positions.size());
    row.positions = positions;
    return ErrorOf(row);
  };
  for (const Ints& right : {Ints{0}, {0, 1, 2, 3}, {0, 1, 0, 1}, {0, 0, 0, 1}}) {
    EXPECT_EQ(check(right), "");
  }
  EXPECT_EQ(check({0, 1, 3, 4}),
            "data: a.txt, token 2: position 3 is neither 0 nor one more than before (sample 40)");
  EXPECT_NE(check({1, 2, 3, 4}).find("token 0: position 1 "), std::string::npos);
  EXPECT_NE(check({0, 1, 1, 2}).find("token 2: position 1 "), std::string::npos);
  EXPECT_NE(check({0, -1, 0, 1}).find("token 1: position -1 "), std::string::npos);
  EXPECT_NE(check({kMin}), "");
  EXPECT_NE(check({0, kMax}), "");
}

TEST(CheckRow, PositionsOfACacheGoOnInIt) {
  const auto check = [](const Ints& positions) {
    Row row{Ints(positions.size(), 3), {}, {}, positions};
    return ErrorOf(row, {.vocab_size = 11, .cache_capacity = 4});
  };
  for (const Ints& right : {Ints{0}, {3}, {0, 1, 2, 3}, {1, 2}}) EXPECT_EQ(check(right), "");
  EXPECT_EQ(check({2, 3, 4}),
            "data: a.txt, token 2: position 4 is not the next of a cache of 4 (sample 40)");
  for (const Ints& wrong : {Ints{4}, {-1}, {0, 0}, {1, 0}, {0, 2}, {kMax}, {kMin}}) {
    EXPECT_NE(check(wrong), "");
  }
}

}  // namespace
}  // namespace fsdp
