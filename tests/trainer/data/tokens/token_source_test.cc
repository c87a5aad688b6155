// Text and synthetic sources, slices and splits: one contract.
#include "trainer/data/tokens/token_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/data/text/text_source.h"

namespace fsdp {
namespace {

std::string WriteFile(const std::string& name, const std::string& contents) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

std::vector<int32_t> ReadAll(const TokenSource& source) {
  std::vector<int32_t> out(static_cast<size_t>(source.size()));
  source.Read(0, out);
  return out;
}

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

// Any range reads as the same tokens as all of it does.
void ExpectRangesAgree(const TokenSource& source) {
  const std::vector<int32_t> all = ReadAll(source);
  for (const int32_t token : all) ASSERT_TRUE(token >= 0 && token < source.vocab_size());
  for (int64_t begin = 0; begin <= source.size(); ++begin) {
    for (int64_t count = 0; begin + count <= source.size(); ++count) {
      std::vector<int32_t> got(static_cast<size_t>(count), -1);
      source.Read(begin, got);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + begin)) << begin << " " << count;
      ASSERT_EQ(source.Count(begin, count, all[0]), std::count(got.begin(), got.end(), all[0]));
    }
  }
  std::vector<int32_t> two(2);
  EXPECT_THROW(source.Read(source.size() - 1, two), std::invalid_argument);
  EXPECT_THROW(source.Read(-1, two), std::invalid_argument);
  EXPECT_THROW(source.Read(INT64_MAX - 1, two), std::invalid_argument);
}

TEST(TextSource, IsTheBytesOfItsFilesEndToEnd) {
  const std::vector<std::string> paths = {WriteFile("1.txt", "abc"), WriteFile("2.txt", "\xff"),
                                          WriteFile("3.txt", "\1z")};
  const TextSource source(paths, /*allow_invalid=*/true);
  EXPECT_EQ(ReadAll(source), (std::vector<int32_t>{'a', 'b', 'c', 255, 1, 'z'}));
  EXPECT_EQ(source.vocab_size(), 256);
  ExpectRangesAgree(source);
  EXPECT_EQ(source.Describe(), paths[0] + " and 2 more files");
  EXPECT_EQ(source.Where(0), paths[0] + ", byte 0");
  EXPECT_EQ(source.Where(3), paths[1] + ", byte 0");
  EXPECT_EQ(source.Where(5), paths[2] + ", byte 1");
  std::vector<DataFile> files;
  for (const std::string& path : paths) files.push_back(DescribeFile(FileContents(path)));
  EXPECT_EQ(source.Files(), files);
  std::filesystem::resize_file(paths[2], 1);
  std::vector<int32_t> out(2);
  EXPECT_THROW(source.Read(4, out), DataError);
}

TEST(TextSource, RefusesWhatIsNoText) {
  const std::string good = WriteFile("good.txt", "text"), latin = WriteFile("latin.txt", "\xe9\n");
  const std::string zero = WriteFile("zero.txt", std::string("a\0", 2));
  const auto open = [](const std::vector<std::string>& paths, bool allow) {
    return MessageOf([&] { TextSource(paths, allow); });
  };
  EXPECT_EQ(open({good, latin}, false).find("data: " + latin + ": 1 of 2 places is no UTF-8"), 0u);
  EXPECT_EQ(open({good, latin}, true), "no error");
  EXPECT_EQ(TextSource(std::vector{good, latin}, true).too_invalid(),
            latin + ": 1 of 2 places is no UTF-8, the first at byte 0");
  EXPECT_EQ(TextSource(std::vector{good}).too_invalid(), "");
  EXPECT_EQ(open({latin, zero}, true).find("data: " + zero + ": is no text (byte 1 is zero)"), 0u);
}

TEST(TextSource, QuickStartTextIsWhatItsReadmeSays) {
  const std::vector<std::string> paths = {"configs/data/jargon.txt"};
  const auto source = std::make_shared<TextSource>(paths);
  EXPECT_EQ(source->size(), 1681817);
  const auto [train, valid] = SplitSource(source, 0.05);
  EXPECT_EQ(train->size(), 1597727);
  EXPECT_EQ(valid->size(), 84090);
  EXPECT_EQ(valid->Where(0), "configs/data/jargon.txt, byte 1597727");
}

TEST(SplitSource, SidesAreDisjointAndComplete) {
  const std::vector<std::string> paths = {WriteFile("s.txt", "0123456789")};
  const auto source = std::make_shared<TextSource>(paths);
  for (const double fraction : {0.1, 0.25, 0.5, 0.99}) {
    const auto [train, valid] = SplitSource(source, fraction);
    EXPECT_EQ(valid->size(), static_cast<int64_t>(10 * fraction));
    std::vector<int32_t> both = ReadAll(*train), tail = ReadAll(*valid);
    both.insert(both.end(), tail.begin(), tail.end());
    EXPECT_EQ(both, ReadAll(*source));
    ExpectRangesAgree(*train);
    ExpectRangesAgree(*valid);
    EXPECT_EQ(valid->Files(), source->Files());
  }
  EXPECT_EQ(SplitSource(source, 0.3).valid->Describe(), "tokens [7, 10) of " + paths[0]);
  EXPECT_NE(MessageOf([&] { SplitSource(source, 0.05); }).find("leaves nothing on one side"),
            std::string::npos);
  EXPECT_THROW(SplitSource(source, 0), std::invalid_argument);
  EXPECT_THROW(SplitSource(source, 1), std::invalid_argument);
  EXPECT_THROW(SplitSource(source, NAN), std::invalid_argument);
  EXPECT_THROW(SliceSource(source, 3, 3), std::invalid_argument);
  EXPECT_THROW(SliceSource(source, 3, 11), std::invalid_argument);
}

TEST(CheckTokens, NamesFileAndOffsetOfTheFirstTokenOutside) {
  const std::vector<std::string> paths = {WriteFile("ascii.txt", std::string(70000, 'a')),
                                          WriteFile("latin.txt", "bc\xe9\xff")};
  const TextSource source(paths, /*allow_invalid=*/true);
  EXPECT_EQ(MessageOf([&] { CheckTokens(source, 128); }),
            "data: " + paths[1] +
                ", byte 2: token 233 is outside the vocabulary of 128 tokens: this data needs a "
                "larger model.vocab_size, at most 256, or is another tokenizer's");
  EXPECT_EQ(MessageOf([&] { CheckTokens(source, 97); }).find("data: " + paths[0] + ", byte 0: "),
            0u);
  EXPECT_EQ(MessageOf([&] { CheckTokens(source, 256); }), "no error");
  const auto ascii = SliceSource(std::make_shared<TextSource>(paths, true), 0, 70002);
  EXPECT_EQ(MessageOf([&] { CheckTokens(*ascii, 128); }), "no error");
}

TEST(SyntheticSource, AnyRangeReadsTheSame) {
  ExpectRangesAgree(
      SyntheticSource({.vocab_size = 17, .num_tokens = 120, .noise = 0.2, .seed = 1}));
  ExpectRangesAgree(SyntheticSource({.vocab_size = 2, .num_tokens = 60, .noise = 0.01, .seed = 2}));
  ExpectRangesAgree(SyntheticSource({.vocab_size = 1021, .num_tokens = 60, .noise = 1, .seed = 3}));
}

// Bounds of five standard errors: fixed seeds, so they hold always or never.
TEST(SyntheticSource, FollowsItsRuleAsOftenAsItSays) {
  constexpr int64_t kN = 200000;
  for (const int32_t vocab : {2, 3, 50, 256}) {
    const SyntheticSource source({.vocab_size = vocab, .num_tokens = kN, .noise = 0.25, .seed = 9});
    const std::vector<int32_t> tokens = ReadAll(source);
    std::vector<int64_t> count(static_cast<size_t>(vocab));
    int64_t followed = 0;
    for (size_t i = 1; i < tokens.size(); ++i) {
      ++count[static_cast<size_t>(tokens[i])];
      followed += tokens[i] == source.Next(tokens[i - 1]);
    }
    const double q = 0.75 + 0.25 / vocab;
    EXPECT_NEAR(followed / double{kN}, q, 5 * std::sqrt(q * (1 - q) / kN));
    // Loss of the true model on this sample, against the entropy in closed form.
    const double right = -std::log(q), wrong = -std::log(0.25 / vocab);
    const double loss = (followed * right + (kN - 1 - followed) * wrong) / (kN - 1);
    EXPECT_NEAR(loss, source.Entropy(), 5 * (wrong - right) * std::sqrt(q * (1 - q) / kN));
    EXPECT_LT(source.Entropy(), std::log(vocab));
    // Tokens of a run of the rule depend on each other: a looser bound, three times as wide.
    for (const int64_t n : count) {
      EXPECT_NEAR(n / double{kN}, 1.0 / vocab, 15 * std::sqrt(1.0 / vocab / kN));
    }
  }
}

TEST(SyntheticSource, RuleVisitsEveryTokenAndSeedsDiffer) {
  for (int32_t vocab = 2; vocab < 200; ++vocab) {
    const SyntheticSource source({.vocab_size = vocab, .num_tokens = 10});
    std::vector<bool> seen(static_cast<size_t>(vocab));
    for (int32_t token = 0; token < vocab; ++token)
      seen.at(static_cast<size_t>(source.Next(token))) = true;
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), vocab);
  }
  EXPECT_NE(ReadAll(SyntheticSource({.num_tokens = 50, .seed = 1})),
            ReadAll(SyntheticSource({.num_tokens = 50, .seed = 2})));
  EXPECT_NEAR(SyntheticSource({.vocab_size = 64, .num_tokens = 1, .noise = 1}).Entropy(),
              std::log(64), 1e-12);
  EXPECT_THROW(SyntheticSource({.vocab_size = 1}), std::invalid_argument);
  EXPECT_THROW(SyntheticSource({.num_tokens = 0}), std::invalid_argument);
  EXPECT_THROW(SyntheticSource({.noise = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
