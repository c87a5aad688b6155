// The rules that join several keys of a recipe.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RULES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RULES_H_

#include <string>
#include <vector>

#include "trainer/recipe/reader.h"
#include "trainer/recipe/recipe.h"

namespace fsdp::recipe {

// Whether the recipe itself gives a shape; otherwise the files under init_from decide.
inline bool HasShape(const ModelRecipe& model) { return model.preset || !model.init_from; }

// Adds each broken rule to the reader's mistakes, at the first of its keys that somebody wrote.
// family_is_null: model.family was given as null, before anything was filled in.
void CheckRules(RecipeReader& reader, const Recipe& recipe, bool family_is_null);

// Adds a rule over `keys` that the caller found broken, unless one of them has a mistake of its
// own.
void AddMistake(RecipeReader& reader, const std::vector<std::string>& keys,
                const std::string& message);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RULES_H_
