// Every recipe under configs/ and of the benchmarks loads, and the documentation is the one of this build.
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
  for (const char* directory : {"configs", "tools/bench"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().extension() != ".yaml") continue;
      SCOPED_TRACE(entry.path());
      try {
        LoadRecipe({entry.path()});
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      ++count;
    }
  }
  EXPECT_GE(count, 7);
}

// Under the preset's name, as far as there is one; sequences may be shorter than the longest.
TEST(Configs, ModelsAreThePresets) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs/models")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path());
    const ModelShape* preset = FindModelPreset(entry.path().stem().string());
    ASSERT_NE(preset, nullptr);
    const Recipe recipe = LoadRecipe({entry.path()});
    EXPECT_EQ(ShapeOf(recipe.model), *preset);
    if (FamilyOf(*preset) == "gpt2") {
      EXPECT_EQ(recipe.data.seq_len, MaxPositions(*preset));
    }
    ++count;
  }
  EXPECT_GE(count, 6);
}

TEST(Docs, RecipePageIsFresh) {
  std::ostringstream page;
  page << std::ifstream("docs/recipe.md").rdbuf();
  EXPECT_EQ(page.str(), RecipeDocumentation())
      << "refresh it: bazel-bin/cmd/fsdp-train config docs > docs/recipe.md";
}

}  // namespace
}  // namespace fsdp
