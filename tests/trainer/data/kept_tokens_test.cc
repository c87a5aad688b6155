#include "trainer/data/kept_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/data/open_tokenizer.h"
#include "trainer/data/text_cache.h"
#include "trainer/data/whole_output.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

TEST(KeptTokens, AreListedAndRemovedAndNothingElseIs) {
  const fs::path dir = fs::path(::testing::TempDir()) / "kept";
  const std::string cache = dir / "cache", text = dir / "a.txt";
  fs::remove_all(dir);
  EXPECT_TRUE(ListKeptTokens(cache).empty());
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

  std::vector<KeptTokens> all = ListKeptTokens(cache);
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
    EXPECT_TRUE(ListKeptTokens(cache)[1].in_use);
    EXPECT_FALSE(RemoveKeptTokens(all[1]));
    EXPECT_TRUE(fs::exists(all[1].directory));
  }
  for (const KeptTokens& kept : all) EXPECT_TRUE(RemoveKeptTokens(kept));
  EXPECT_TRUE(ListKeptTokens(cache).empty());
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
