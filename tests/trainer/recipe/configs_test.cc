// Every recipe under configs/ and of the benchmarks loads, and the documentation is the one of this
// build.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "models/shape.h"
#include "tests/testing/json.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

TEST(Configs, EveryRecipeLoads) {
  int count = 0;
  for (const char* directory : {"configs", "tools/bench"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().extension() != ".yaml") continue;
      if (entry.path().parent_path() == "configs/hardware") continue;  // No recipes.
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

// A recipe that names a preset has its name; sequences may be shorter than the longest.
TEST(Configs, ModelsAreThePresets) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs/models")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path());
    const Recipe recipe = LoadRecipe({entry.path()});
    if (!recipe.model.preset) continue;  // A small one of its own.
    const ModelShape* preset = FindModelPreset(entry.path().stem().string());
    ASSERT_NE(preset, nullptr);
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

// The page gives both ends of every integer's range.
TEST(Docs, RecipePageBoundsEveryInteger) {
  const std::regex integer("integer"), bounded("integer >= [0-9]+ and <= ([0-9]+|2\\^(31|63) - 1)");
  const auto count = [](const std::string& text, const std::regex& what) {
    return std::distance(std::sregex_iterator(text.begin(), text.end(), what), {});
  };
  std::istringstream lines(RecipeDocumentation());
  int64_t integers = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const size_t begin = line.find(" | "), end = line.find(" | ", begin + 1);
    const std::string value = line.substr(begin, end - begin);
    EXPECT_EQ(count(value, integer), count(value, bounded)) << line;
    integers += count(value, integer);
  }
  EXPECT_GE(integers, 35);
}

TEST(Docs, RecipeOfThePageLoads) {
  const std::string page = RecipeDocumentation();
  std::string recipe;
  std::istringstream lines(page.substr(page.find("\n    run: ") + 1));
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    recipe += line.substr(4) + "\n";
  }
  EXPECT_NE(recipe.find("checkpoint: "), std::string::npos) << recipe;
  EXPECT_EQ(ParseRecipe({{"docs/recipe.md", recipe}}, {"optimizer.lr=6e-4"}).train.steps, 2000);
}

// Every key that a schema has anywhere, "[]" standing for the items of a list.
void AddKeys(const testing::Json& schema, const std::string& key, std::vector<std::string>& keys) {
  if (schema.contains("properties")) {
    for (const auto& [name, property] : schema["properties"].items()) {
      const std::string whole = key.empty() ? name : key + "." + name;
      keys.push_back(whole);
      AddKeys(property, whole, keys);
    }
  }
  if (schema.contains("anyOf")) {
    for (const auto& form : schema["anyOf"]) AddKeys(form, key, keys);
  }
  if (schema.contains("items")) AddKeys(schema["items"], key + "[]", keys);
}

// Keys that several maps share have one row: without "[]" where a single map has the key, too, and
// data.train's where data.valid has it, too.
TEST(Docs, RecipePageHasEveryKey) {
  const std::string page = RecipeDocumentation();
  std::vector<std::string> keys;
  AddKeys(testing::Json::parse(RecipeJsonSchema()), "", keys);
  EXPECT_GE(keys.size(), 100u);
  EXPECT_NE(std::find(keys.begin(), keys.end(), "optimizer.groups[].match"), keys.end());
  for (std::string key : keys) {
    if (key.find('.') == std::string::npos) {
      EXPECT_NE(page.find("\n## " + key + "\n"), std::string::npos) << key;
      continue;
    }
    bool found = page.find("| `" + key + "` |") != std::string::npos;
    if (const size_t list = key.find("[]"); !found && list != std::string::npos) {
      found = page.find("| `" + key.erase(list, 2) + "` |") != std::string::npos;
    }
    if (const std::string valid = "data.valid."; !found && key.starts_with(valid)) {
      found = page.find("| `data.train." + key.substr(valid.size()) + "` |") != std::string::npos;
    }
    EXPECT_TRUE(found) << key;
  }
}

}  // namespace
}  // namespace fsdp
