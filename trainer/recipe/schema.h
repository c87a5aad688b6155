// The table of all keys. Parsing, errors, printing, the JSON Schema and docs/recipe.md read it;
// defaults are recipe.h's initialisers, read through it.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_

#include <string>
#include <vector>

#include "trainer/recipe/reader.h"
#include "trainer/recipe/types.h"

namespace fsdp {
struct Recipe;
}  // namespace fsdp

namespace fsdp::recipe {

// JSON Schema, draft 2020-12.
const Json& RecipeSchema();

// Takes what the tree names into the recipe; mistakes become the reader's notes.
void ReadRecipe(const YamlNode& node, RecipeReader& reader, Recipe& recipe);

// Every key; reading it again gives the same recipe.
Json WriteRecipe(const Recipe& recipe);

// Every key with its dots, sections too, in the table's order.
std::vector<std::string> KnownKeys();

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_
