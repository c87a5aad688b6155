#include "trainer/recipe/hints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/schema.h"

namespace fsdp {
namespace {

using recipe::EditDistance;
using recipe::FindPeersWord;
using recipe::KnownKeys;
using recipe::Nearest;
using recipe::PeersWord;
using recipe::PeersWords;

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("steps", "step"), 1);
  EXPECT_EQ(EditDistance("hiden", "hidden"), 1);
  EXPECT_EQ(EditDistance("tarin", "train"), 1);  // A swap is one edit.
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ca", "abc"), 3);  // No part is edited twice.
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> keys = {
      "hidden_size", "num_hidden_layers", "lr", "warmup_steps", "steps", "eps"};
  EXPECT_EQ(Nearest("hiden_size", keys), "hidden_size");
  EXPECT_EQ(Nearest("hidden-size", keys), "hidden_size");
  EXPECT_EQ(Nearest("HIDDEN_SIZE", keys), "hidden_size");
  EXPECT_EQ(Nearest("step", keys), "steps");
  EXPECT_EQ(Nearest("warmup", keys), "warmup_steps");  // A part of it.
  EXPECT_EQ(Nearest("the_steps_all", keys), "steps");  // It is a part.
  EXPECT_EQ(Nearest("hidden", keys), "hidden_size");   // The shortest of two.
  EXPECT_EQ(Nearest("lrr", keys), "lr");
  EXPECT_EQ(Nearest("x", keys), "");
  EXPECT_EQ(Nearest("l", keys), "");  // One letter away, but there is only one.
  EXPECT_EQ(Nearest("rl", keys), "lr");
  EXPECT_EQ(Nearest("", keys), "");
  EXPECT_EQ(Nearest("dropout", keys), "");
  EXPECT_EQ(Nearest(std::string(1000000, 's'), keys), "");
}

TEST(PeersWords, EachHasAKeyOfOursOrARemark) {
  const std::vector<std::string> known = KnownKeys();
  std::set<std::string> names;  // Last parts: a key of that name is found without a table.
  for (const std::string& key : known) names.insert(key.substr(key.rfind('.') + 1));
  std::set<std::string> words;
  for (const PeersWord& peers : PeersWords()) {
    EXPECT_TRUE(words.emplace(peers.word).second) << peers.word << " twice";
    EXPECT_EQ(names.count(std::string(peers.word)), 0u) << peers.word;
    if (peers.key.empty()) {
      EXPECT_FALSE(peers.remark.empty()) << peers.word;
    } else {
      EXPECT_EQ(std::count(known.begin(), known.end(), peers.key), 1) << peers.key;
    }
  }
  EXPECT_EQ(FindPeersWord("rank"), nullptr);
  EXPECT_EQ(FindPeersWord("type"), nullptr);
}

TEST(PeersValues, AreWhatAMistakeSuggests) {
  const auto mistake = [](const std::string& setting) -> std::string {
    try {
      ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {train: {source: synthetic}}\n"}},
                  {setting});
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      return text.substr(text.find(", got "));
    }
    return "taken";
  };
  for (const recipe::PeersValue& value : recipe::PeersValues()) {
    const std::string key(value.key), ours(value.ours), word(value.word);
    EXPECT_EQ(mistake(key + "=" + ours), "taken");
    EXPECT_NE(mistake(key + "=" + word).find("`" + ours + "`"), std::string::npos) << word;
  }
  EXPECT_EQ(mistake("run.device=gpu"), ", got the text `gpu`; did you mean `cuda`?");
  EXPECT_EQ(mistake("model.family=Qwen3"), ", got the text `Qwen3`: `llama` is what trains it");
  EXPECT_EQ(mistake("model.family=lama"), ", got the text `lama`; did you mean `llama`?");
}

TEST(PeersWords, AreWhatAMistakeSuggests) {
  const auto mistake = [](const std::string& setting) -> std::string {
    try {
      ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {train: {paths: [x]}}\n"}}, {setting});
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      return text.substr(text.find("unknown key"));
    }
    return "taken";
  };
  const std::string begin = "unknown key; did you mean ";
  EXPECT_EQ(mistake("model={init_from: x, lora: {r: 8}}"), begin + "`rank`?");
  EXPECT_EQ(mistake("model={init_from: x, lora: {lora_alpha: 8}}"), begin + "`alpha`?");
  EXPECT_EQ(mistake("model={init_from: x, lora: {target_modules: [q_proj]}}"),
            begin + "`targets`?");
  EXPECT_EQ(mistake("model={init_from: x, lora: {lora_dropout: 0.1}}"),
            "unknown key; adapters have no dropout here, as with PEFT's 0");
  EXPECT_EQ(mistake("model.lora_r=8"), begin + "`model.lora.rank`?");
  EXPECT_EQ(mistake("learning_rate=1"), begin + "`optimizer.lr`?");
  EXPECT_EQ(mistake("model.model_name_or_path=x"),
            begin + "`init_from`? (a directory, not a hub's name)");
  EXPECT_EQ(mistake("train.learning_rate=1"), begin + "`optimizer.lr`?");
  EXPECT_EQ(mistake("schedule.type=cosine"), begin + "`name`?");
  EXPECT_EQ(mistake("data.train=[{paths: [x], type: text}]"), begin + "`source`?");
  EXPECT_EQ(mistake("activation_checkpoint.mode=full"),
            begin + "`train.activation_checkpointing`?");
  EXPECT_EQ(mistake("model.name=llama3"), begin + "`preset`?");
  EXPECT_EQ(mistake("val_set_size=0.1"), begin + "`data.valid.fraction`?");
  EXPECT_TRUE(mistake("wandb_project=x").starts_with("unknown key; not in this version"));
}

}  // namespace
}  // namespace fsdp
