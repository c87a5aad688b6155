// Every recipe under configs/ loads, and the documentation is the one of this build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"

namespace fsdp {
namespace {

TEST(Configs, EveryRecipeLoads) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path());
    try {
      LoadRecipe({entry.path()});
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ++count;
  }
  EXPECT_GE(count, 4);
}

TEST(Configs, ModelsAreThePresets) {
  for (const Gpt2Preset& preset : Gpt2Presets()) {
    const Recipe recipe = LoadRecipe({"configs/models/" + std::string(preset.name) + ".yaml"});
    EXPECT_EQ(Gpt2Shape(recipe.model), preset.config) << preset.name;
    EXPECT_EQ(recipe.data.seq_len, preset.config.max_position_embeddings);
  }
}

TEST(Docs, RecipePageIsFresh) {
  std::ostringstream page;
  page << std::ifstream("docs/recipe.md").rdbuf();
  EXPECT_EQ(page.str(), RecipeDocumentation())
      << "refresh it: bazel-bin/cmd/fsdp-train config docs > docs/recipe.md";
}

}  // namespace
}  // namespace fsdp
