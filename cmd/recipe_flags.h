// The flags that name a recipe, the same wherever a command takes one.
#ifndef FSDP_TRAIN_CMD_RECIPE_FLAGS_H_
#define FSDP_TRAIN_CMD_RECIPE_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

struct Recipe;

struct RecipeFlags {
  std::vector<std::string> files;
  std::vector<std::string> overrides;
};

// --config FILE and --set KEY=VALUE, each any number of times.
void AddRecipeFlags(CLI::App& app, std::vector<std::string>& files,
                    std::vector<std::string>& overrides);
inline void AddRecipeFlags(CLI::App& app, RecipeFlags& flags) {
  AddRecipeFlags(app, flags.files, flags.overrides);
}

// Throws ConfigError, also where --config is missing.
Recipe LoadRecipe(const RecipeFlags& flags);

// Loads the recipe once, completed (loop/complete_recipe.h). Each call of the function returned
// loads it with the overrides `more` behind its own, and reads no tokenizer. No key in `more` may
// be of model or data. Both throw ConfigError.
std::function<Recipe(const std::vector<std::string>& more)> RecipeLoader(const RecipeFlags& flags);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_RECIPE_FLAGS_H_
