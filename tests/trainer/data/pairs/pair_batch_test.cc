#include "trainer/data/pairs/pair_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "trainer/data/tokens/token_batch.h"

namespace fsdp {
namespace {

TEST(PairBatch, ARowIsPaddedAndMovedRight) {
  const BatchSpec spec = PairInputs(5, 4, 9);
  EXPECT_TRUE(IsOfPairs(spec));
  EXPECT_FALSE(IsOfPairs(TokenInputs(5, 9)));
  std::vector<std::byte> bytes(static_cast<size_t>(BatchBytes(spec, 2)), std::byte{0x5a});
  const Batch batch = CarveBatch(spec, 2, bytes.data());
  const PairRow row = RowOf(batch, 1);
  std::fill(row.input.begin(), row.input.end(), 7);
  std::fill(row.target.begin(), row.target.end(), 8);
  row.target[0] = 6;
  FinishRow(row, 3, 2);
  FinishRow(RowOf(batch, 0), 0, 0);
  const PairBatch pairs(batch);
  const auto ints = [](const View& view) {
    return std::vector<int32_t>(view.As<int32_t>(), view.As<int32_t>() + view.NumElements());
  };
  EXPECT_EQ(ints(pairs.encoder.tokens), (std::vector<int32_t>{0, 0, 0, 0, 0, 7, 7, 7, 0, 0}));
  EXPECT_EQ(ints(pairs.lengths), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(ints(pairs.decoder.targets), (std::vector<int32_t>{0, 0, 0, 0, 6, 8, 0, 0}));
  EXPECT_EQ(ints(pairs.decoder.tokens), (std::vector<int32_t>{0, 0, 0, 0, 0, 6, 8, 0}));
  const float* const weights = pairs.decoder.weights.As<float>();
  EXPECT_EQ(std::vector<float>(weights, weights + 8), (std::vector<float>{0, 0, 0, 0, 1, 1, 0, 0}));
  EXPECT_THROW(PairBatch(Batch{}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
