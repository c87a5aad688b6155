#include "cmd/recipe_flags.h"

#include "trainer/loop/complete_recipe.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

void AddRecipeFlags(CLI::App& app, std::vector<std::string>& files,
                    std::vector<std::string>& overrides) {
  // One value a flag: what follows it is not swallowed, and [1, 2] in a value stays whole.
  app.add_option("--config", files, "A recipe (YAML). Later files override earlier ones.")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--set", overrides,
                 "Overrides one key, for example --set optimizer.lr=3e-4. The value is YAML.")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->take_all();
}

Recipe LoadRecipe(const RecipeFlags& flags) {
  return LoadRecipe(flags.files, flags.overrides, ModelMistakes, CompleteRecipe);
}

std::function<Recipe(const std::vector<std::string>& more)> RecipeLoader(const RecipeFlags& flags) {
  return [flags, whole = LoadRecipe(flags)](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = flags.overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto complete = [&](Recipe& recipe) {
      recipe.model = whole.model;
      recipe.data = whole.data;
      recipe.fsdp.mixed_precision.keep_fp32 = whole.fsdp.mixed_precision.keep_fp32;
      recipe.notes = whole.notes;
      return std::vector<ShapeConflict>();
    };
    return LoadRecipe(flags.files, overrides, ModelMistakes, complete);
  };
}

}  // namespace fsdp
