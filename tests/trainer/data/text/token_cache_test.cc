#include "trainer/data/text/token_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

std::string Message(const std::function<void()>& act) {
  try {
    act();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenSet, ACacheThatIsNoDirectoryIsNamed) {
  const fs::path dir = fs::path(::testing::TempDir()) / "no_cache";
  fs::remove_all(dir);
  fs::create_directories(dir / "cache");
  const std::string text = dir / "a.txt", loop = dir / "loop", lost = dir / "lost";
  std::ofstream(text) << "some text";
  fs::create_symlink("loop", loop);
  fs::create_symlink("/gone", lost);
  TokenizeOptions options;
  options.files = {text};
  const auto open = [&](const std::string& cache) {
    return Message(
        [&] { OpenTextTokens(cache, OpenTokenizer("bytes"), "bytes", options, nullptr); });
  };
  const std::string cure = "; data.cache names another directory";
  EXPECT_EQ(open(loop),
            "tokenize: " + loop + ": cannot be made: Too many levels of symbolic links" + cure);
  EXPECT_EQ(open(lost),
            "tokenize: " + lost + ": cannot be made: it is a link that leads nowhere" + cure);
  EXPECT_EQ(open(text), "tokenize: " + text + ": cannot be made: Not a directory" + cure);
  EXPECT_EQ(Message([&] { ListTokenSets(loop); }),
            "cache: " + loop + ": Too many levels of symbolic links");
  // An entry that leads nowhere is none of ours.
  fs::create_symlink("0123456789abcdef", dir / "cache" / "0123456789abcdef");
  EXPECT_TRUE(ListTokenSets(dir / "cache").empty());
}

TEST(TokenSet, AreListedAndRemovedAndNothingElseIs) {
  const fs::path dir = fs::path(::testing::TempDir()) / "kept";
  const std::string cache = dir / "cache", text = dir / "a.txt";
  fs::remove_all(dir);
  EXPECT_TRUE(ListTokenSets(cache).empty());
  fs::create_directories(dir / "cache" / "mine");
  std::ofstream(text) << "some text";
  std::ofstream(dir / "cache" / "notes.txt") << "notes";
  TokenizeOptions options;
  options.files = {text};
  const auto source = OpenTextTokens(cache, OpenTokenizer("bytes"), "bytes", options, nullptr);
  const std::string half = cache + "/0123456789abcdef";
  fs::create_directory(half);
  std::ofstream(half + "/progress.json") << "{}";
  std::ofstream(half + ".lock") << "";
  fs::create_directory(cache + "/fedcba9876543210");  // No run has made it.

  std::vector<TokenSet> all = ListTokenSets(cache);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].directory, half);
  EXPECT_EQ(all[0].bytes, 2);
  EXPECT_EQ(all[0].tokens, 0);
  EXPECT_EQ(all[1].tokens, source->size());
  EXPECT_EQ(all[1].inputs, text);
  EXPECT_GT(all[1].bytes, 1024);  // llm.c's header alone.
  EXPECT_FALSE(all[1].in_use);
  {
    FileLock writer(all[1].directory + ".lock");
    ASSERT_TRUE(writer.Try());
    EXPECT_TRUE(ListTokenSets(cache)[1].in_use);
    EXPECT_FALSE(RemoveTokenSet(all[1]));
    EXPECT_TRUE(fs::exists(all[1].directory));
  }
  for (const TokenSet& kept : all) EXPECT_TRUE(RemoveTokenSet(kept));
  EXPECT_TRUE(ListTokenSets(cache).empty());
  EXPECT_TRUE(fs::exists(cache + "/mine"));
  EXPECT_TRUE(fs::exists(cache + "/fedcba9876543210"));
  EXPECT_TRUE(fs::exists(cache + "/notes.txt"));
  std::vector<int32_t> read(4);
  source->Read(0, read);  // A run goes on.
  EXPECT_EQ(read[0], 's');
  const auto again = OpenTextTokens(cache, OpenTokenizer("bytes"), "bytes", options, nullptr);
  EXPECT_EQ(again->size(), source->size());
}

}  // namespace
}  // namespace fsdp
