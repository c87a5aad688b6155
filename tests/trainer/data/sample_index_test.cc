#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "trainer/core/errors.h"
#include "trainer/data/permutation.h"

namespace fsdp {
namespace {

TEST(SampleIndex, WindowsShareOneTokenAndCoverTheText) {
  for (const int64_t seq_len : {1, 2, 7, 16}) {
    for (int64_t tokens = seq_len + 1; tokens < 70; ++tokens) {
      const SampleIndex index(tokens, seq_len, /*shuffle=*/false, 0);
      std::set<int64_t> targets;
      for (int64_t i = 0; i < index.Windows(); ++i) {
        const int64_t begin = index.TokenOffset(i);
        ASSERT_LE(begin + seq_len + 1, tokens);
        for (int64_t j = 1; j <= seq_len; ++j) ASSERT_TRUE(targets.insert(begin + j).second);
      }
      EXPECT_EQ(*targets.begin(), 1);
      EXPECT_EQ(*targets.rbegin(), std::ssize(targets));
      EXPECT_LT(tokens - 1 - std::ssize(targets), seq_len);  // Tokens in no window.
    }
  }
}

TEST(SampleIndex, EveryEpochIsAllWindowsInAnOrderOfItsOwn) {
  const SampleIndex index(1001, 10, /*shuffle=*/true, /*seed=*/5);
  ASSERT_EQ(index.Windows(), 100);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 100; ++i) order.push_back(index.TokenOffset(epoch * 100 + i));
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 100u);
    for (const int64_t offset : order) EXPECT_EQ(offset % 10, 0);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 20u);
}

// "1,000 tokens with a seq_len of 64 are 15 windows, and 39 tokens are left."
TEST(SampleIndex, IsAsDocsTrainingSays) {
  const SampleIndex index(1000, 64, /*shuffle=*/false, 0);
  EXPECT_EQ(index.Windows(), 15);
  EXPECT_EQ(1000 - (index.TokenOffset(14) + 64 + 1), 39);
}

// Frozen: a change here changes what every resumed run sees next.
TEST(SampleIndex, OrderIsWhatItAlwaysWas) {
  const SampleIndex index(1681817, 256, /*shuffle=*/true, /*seed=*/1337);
  EXPECT_EQ(index.Windows(), 6569);
  std::vector<int64_t> got;
  for (const int64_t sample : {0, 1, 2, 6568, 6569, 1000000})
    got.push_back(index.TokenOffset(sample) / 256);
  EXPECT_EQ(got, (std::vector<int64_t>{3128, 6442, 5349, 2426, 3188, 201}));
}

TEST(SampleIndex, TooLittleDataNamesTheNumbers) {
  try {
    SampleIndex(256, 256, true, 0, "a.txt");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_STREQ(error.what(),
                 "data: a.txt: 256 tokens, but one sample takes data.seq_len + 1 = 257: give more "
                 "data, a shorter data.seq_len or another data.valid");
  }
  EXPECT_EQ(SampleIndex(257, 256, true, 0).Windows(), 1);
  EXPECT_EQ(SampleIndex(257, 256, true, 0).TokenOffset(12345), 0);
  EXPECT_THROW(SampleIndex(0, 1, true, 0), DataError);
  EXPECT_THROW(SampleIndex(10, 0, true, 0), std::invalid_argument);
  EXPECT_THROW(SampleIndex(10, 1, true, 0).TokenOffset(-1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
