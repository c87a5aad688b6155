// The rules that join several keys of a recipe.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RULES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RULES_H_

#include <string>
#include <vector>

#include "trainer/recipe/reader.h"
#include "trainer/recipe/recipe.h"

namespace fsdp::recipe {

// Whether the recipe itself has one; otherwise the files under init_from decide.
inline bool HasShape(const ModelRecipe& model) { return model.preset || !model.init_from; }

// Adds what breaks one to the reader's mistakes, each at the first of its keys that somebody wrote.
// family_is_null: model.family was given as null, before anything was filled in.
void CheckRules(RecipeReader& reader, const Recipe& recipe, bool family_is_null);

// Likewise, of a rule over `keys` that another has found broken. Nothing where one of them has a
// mistake of its own.
void AddMistake(RecipeReader& reader, const std::vector<std::string>& keys,
                const std::string& message);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RULES_H_
