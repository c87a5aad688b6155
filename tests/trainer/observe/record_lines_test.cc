#include "trainer/observe/record_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

std::string Put(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/record_lines_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Each as "number: text", with what is other than a line's end behind it.
Strings Read(const std::string& path) {
  Strings lines;
  ReadRecordLines(path, [&](const RecordLine& line) {
    const std::string text(line.text.substr(0, 10));
    lines.push_back(std::to_string(line.number) + ": " + text +
                    (line.zeros > 0 ? std::to_string(line.zeros) + " zeros" : "") +
                    (line.ended ? "" : " unended"));
    EXPECT_LE(std::ssize(line.text), kLongestRecord + 1);
  });
  return lines;
}

TEST(RecordLines, EndAtLineEndsAndZeros) {
  EXPECT_EQ(Read(Put("empty", "")), Strings{});
  EXPECT_EQ(Read(Put("lines", "a\n\nb\nc")), (Strings{"1: a", "2: ", "3: b", "4: c unended"}));
  using namespace std::string_literals;
  EXPECT_EQ(Read(Put("zeros", "\0\0\na\0\0b\nc\n\0"s)),
            (Strings{"1: 2 zeros", "2: a", "2: 2 zeros", "2: b", "3: c", "4: 1 zeros"}));
}

// Wherever blocks of the file end.
TEST(RecordLines, MayLieAcrossBlocks) {
  for (const int64_t length : {262142, 262143, 262144, 262145, 600000}) {
    const std::string a(static_cast<size_t>(length), 'a');
    EXPECT_EQ(Read(Put("blocks", a + "\nb\n")), (Strings{"1: aaaaaaaaaa", "2: b"}));
    const std::string zeros(static_cast<size_t>(length), '\0');
    EXPECT_EQ(Read(Put("blocks", zeros + "\nb\n")),
              (Strings{"1: " + std::to_string(length) + " zeros", "2: b"}));
  }
}

TEST(RecordLines, OfAnySizeTakeTheMemoryOfARecord) {
  const std::string path = Put("sparse", "a\n");
  ASSERT_EQ(::truncate(path.c_str(), int64_t{1} << 40), 0);
  std::ofstream(path, std::ios::binary | std::ios::app) << "\nb\n";
  EXPECT_EQ(Read(path), (Strings{"1: a", "2: 1099511627774 zeros", "3: b"}));
  const std::string line(static_cast<size_t>(2 * kLongestRecord), 'x');
  EXPECT_EQ(Read(Put("long", line + "\nb\n")), (Strings{"1: xxxxxxxxxx", "2: b"}));
}

TEST(RecordLines, AreThoseOfAFile) {
  EXPECT_THROW(Read("/dev/zero"), CheckpointError);
  EXPECT_THROW(Read(::testing::TempDir()), CheckpointError);
}

}  // namespace
}  // namespace fsdp
