#include "trainer/recipe/hints.h"

#include <gtest/gtest.h>

#include <string>

#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

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

}  // namespace
}  // namespace fsdp
