#include "trainer/core/peers_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/peers_typed.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/schema.h"

namespace fsdp {
namespace {

using recipe::KnownKeys;

TEST(PeersWords, EachHasAWordOfOursOrARemark) {
  const std::vector<std::string> known = KnownKeys();
  for (const auto table : {PeersKeys(), PeersFlags(), PeersCommands()}) {
    std::set<std::string_view> words;
    for (const PeersWord& peers : table) {
      EXPECT_TRUE(words.insert(peers.word).second) << peers.word << " twice";
      EXPECT_TRUE(peers.HasOurs() || !peers.remark.empty()) << peers.word;
      EXPECT_EQ(FindPeersWord(table, peers.word), &peers);
    }
  }
  for (const PeersWord& peers : PeersKeys()) {
    EXPECT_EQ(std::ranges::count(known, peers.word), 0) << peers.word;
    EXPECT_TRUE(!peers.HasOurs() || std::ranges::count(known, peers.ours) == 1) << peers.ours;
  }
  EXPECT_EQ(FindPeersWord(PeersKeys(), "rank"), nullptr);
}

// Keys of each trainer, by a table that was written by hand. Flags and commands: main_test.cc.
TEST(PeersWords, AreWhatAMistakeSuggests) {
  std::map<std::string, int> trainers;
  for (const testing::PeersTyped& peers : testing::ReadPeersTyped()) {
    if (peers.is_command) continue;
    ++trainers[peers.trainer];
    const std::string mistakes = testing::ErrorOf<ConfigError>([&] {
      ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {train: {paths: [x]}}\n"},
                   {"t.yaml", peers.typed + "\n"}});
    });
    EXPECT_TRUE(peers.IsIn(mistakes)) << peers.typed << "\n" << mistakes;
    EXPECT_EQ(mistakes.find("known here"), std::string::npos) << mistakes;
  }
  EXPECT_EQ(trainers.size(), 5u);
  for (const auto& [trainer, keys] : trainers) EXPECT_GE(keys, 25) << trainer;
}

}  // namespace
}  // namespace fsdp
