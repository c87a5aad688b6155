#include <gtest/gtest.h>

#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

TEST(PaddedVocabulary, ReadsIdsBeyondTheTokenizers) {
  const auto whole = PaddedVocabulary(ByteTokenizer(), 300);
  EXPECT_EQ(whole->vocab_size(), 300);
  EXPECT_EQ(whole->Encode("ab"), (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(whole->Decode(std::vector<int32_t>{'a', 256, 299, 'b'}), "a<256><299>b");
  EXPECT_THROW(whole->Piece(300), std::invalid_argument);
  EXPECT_THROW(whole->Piece(-1), std::invalid_argument);
  EXPECT_EQ(whole->hash(), ByteTokenizer()->hash());
  EXPECT_TRUE(whole->Has(255) && !whole->Has(256) && !whole->Has(299) && !whole->Has(-1));
  EXPECT_EQ(whole->Lacks(259), (std::vector<int32_t>{256, 257, 258}));
  EXPECT_TRUE(whole->Lacks(200).empty());
  // A model may know fewer.
  EXPECT_EQ(PaddedVocabulary(ByteTokenizer(), 10)->vocab_size(), 256);
}

TEST(PaddedVocabulary, NeedsNoTokenizer) {
  const auto whole = PaddedVocabulary(nullptr, 3);
  EXPECT_EQ(whole->Decode(std::vector<int32_t>{0, 2}), "<0><2>");
  EXPECT_TRUE(whole->Lacks(3).empty());
  EXPECT_THROW(whole->Encode("a"), DataError);
  EXPECT_THROW(whole->Piece(3), std::invalid_argument);
  EXPECT_FALSE(whole->bos() || whole->eot() || whole->IdOf("a"));
}

}  // namespace
}  // namespace fsdp
