#include "trainer/core/file_prefix.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

const std::string kText = [] {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "line " + std::to_string(i) + "\n";
  return text;  // Several blocks long.
}();

std::string Put(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/file_prefix";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

FilePrefix PrefixOf(std::string_view text) {
  PrefixHash hash;
  hash.Update(text);
  return hash.Taken();
}

TEST(PrefixHash, IsOfTheBytesAndNotOfTheirPieces) {
  EXPECT_EQ(PrefixHash().Taken(), (FilePrefix{0, 0xef46db3751d8e999}));  // XXH64's own example.
  PrefixHash hash;
  for (size_t at = 0, piece = 1; at < kText.size(); at += piece, piece = piece * 3 % 1009 + 1) {
    hash.Update(std::string_view(kText).substr(at, piece));
    if (at == 0) hash = std::move(hash);
  }
  EXPECT_EQ(hash.Taken(), PrefixOf(kText));
  EXPECT_EQ(hash.Taken().bytes, std::ssize(kText));
  EXPECT_EQ(HashOfFirst(Put(kText), 10).Taken(), PrefixOf(kText.substr(0, 10)));
  PrefixHash all = HashOfFirst(Put(kText), std::ssize(kText));
  all.Update("more");
  EXPECT_EQ(all.Taken(), PrefixOf(kText + "more"));
}

TEST(HowItDiffers, SaysWhetherAFileBeginsSo) {
  for (const int64_t bytes : {int64_t{0}, int64_t{10}, int64_t{262144}, std::ssize(kText)}) {
    const FilePrefix prefix =
        PrefixOf(std::string_view(kText).substr(0, static_cast<size_t>(bytes)));
    EXPECT_EQ(HowItDiffers(Put(kText), prefix), "");
    EXPECT_EQ(HowItDiffers(Put(kText + "more"), prefix), "");
    if (bytes == 0) continue;
    const std::string size = std::to_string(bytes);
    EXPECT_EQ(HowItDiffers(Put(kText.substr(0, static_cast<size_t>(bytes - 1))), prefix),
              "has " + std::to_string(bytes - 1) + " bytes, want at least " + size);
    for (const int64_t at : {int64_t{0}, bytes / 2, bytes - 1}) {
      std::string other = kText;
      other[static_cast<size_t>(at)] ^= 1;
      const std::string how = HowItDiffers(Put(other), prefix);
      EXPECT_EQ(how.find("its first " + size + " bytes have the hash "), 0u) << how;
    }
    std::string without = kText;
    without.erase(0, without.find('\n') + 1);
    EXPECT_NE(HowItDiffers(Put(without), prefix), "");
    EXPECT_EQ(HowItDiffers(::testing::TempDir() + "/none", prefix),
              "is gone, want " + size + " bytes");
  }
  // No bytes of a hole are read for long.
  const std::string sparse = Put("");
  ASSERT_EQ(::truncate(sparse.c_str(), int64_t{1} << 40), 0);
  EXPECT_NE(HowItDiffers(sparse, {int64_t{1} << 39, 0}), "");
  EXPECT_THROW(HowItDiffers("/dev/zero", {}), CheckpointError);
}

}  // namespace
}  // namespace fsdp
