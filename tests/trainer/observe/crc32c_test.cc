#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "trainer/observe/tensorboard.h"

namespace fsdp {
namespace {

// RFC 3720, appendix B.4; the last is the check value of CRC-32/ISCSI in the catalogue of
// parametrised CRC algorithms (reveng.sourceforge.io).
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string bytes(32, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eu);
  std::reverse(bytes.begin(), bytes.end());
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

}  // namespace
}  // namespace fsdp
