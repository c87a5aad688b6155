#include "trainer/core/line_buffer.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdp {
namespace {

using Lines = std::vector<std::pair<std::string, bool>>;

// The lines that come out when `text` arrives in pieces of `piece` bytes.
Lines Split(const std::string& text, size_t piece, size_t max_line = 8) {
  LineBuffer buffer(max_line);
  Lines lines;
  const auto emit = [&](std::string_view line, bool ended) { lines.emplace_back(line, ended); };
  for (size_t i = 0; i < text.size(); i += piece) {
    buffer.Append(std::string_view(text).substr(i, piece), emit);
  }
  buffer.Flush(emit);
  buffer.Flush(emit);  // Nothing is left.
  return lines;
}

class LineBufferTest : public ::testing::TestWithParam<size_t> {};  // Bytes that arrive at once.

TEST_P(LineBufferTest, Lines) {
  EXPECT_EQ(Split("ab\n\nc\n", GetParam()), (Lines{{"ab", true}, {"", true}, {"c", true}}));
}

TEST_P(LineBufferTest, HalfALineComesAtTheEnd) {
  EXPECT_EQ(Split("ab\ncd", GetParam()), (Lines{{"ab", true}, {"cd", false}}));
}

TEST_P(LineBufferTest, LongLinesComeInPieces) {
  EXPECT_EQ(Split("0123456789abcdefXYZ\nq\n", GetParam()),
            (Lines{{"01234567", false}, {"89abcdef", false}, {"XYZ", true}, {"q", true}}));
}

TEST_P(LineBufferTest, ALineOfExactlyTheLimitIsOneLine) {
  EXPECT_EQ(Split("01234567\nq\n", GetParam()), (Lines{{"01234567", true}, {"q", true}}));
}

TEST_P(LineBufferTest, AnyByteMayBeInALine) {
  const std::string bytes("\0\r\x80\xff", 4);
  EXPECT_EQ(Split(bytes + "\n" + bytes, GetParam()), (Lines{{bytes, true}, {bytes, false}}));
}

INSTANTIATE_TEST_SUITE_P(Pieces, LineBufferTest, ::testing::Values(1, 2, 3, 7, 100));

}  // namespace
}  // namespace fsdp
