#include "trainer/data/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

TEST(ByteTokenizer, RoundTripsEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<int32_t> tokens = EncodeBytes(all);
  for (int32_t token = 0; token < 256; ++token) EXPECT_EQ(tokens.at(token), token);
  EXPECT_EQ(DecodeBytes(tokens), all);
  EXPECT_EQ(EncodeBytes("é"), (std::vector<int32_t>{0xc3, 0xa9}));
  EXPECT_EQ(EncodeBytes(""), std::vector<int32_t>{});
}

TEST(ByteTokenizer, RefusesWhatIsNoByte) {
  EXPECT_THROW(DecodeBytes(std::vector<int32_t>{65, 256}), std::invalid_argument);
  EXPECT_THROW(DecodeBytes(std::vector<int32_t>{-1}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
