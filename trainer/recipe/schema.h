// The table of all keys. Parsing, errors, printing, the JSON Schema and docs/recipe.md read it;
// defaults are recipe.h's initialisers, read through it.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_

#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"
#include "trainer/recipe/types.h"

namespace fsdp::recipe {

const Type<Recipe>& RecipeType();

// Every key with its dots, sections too, in the table's order.
std::vector<std::string> KnownKeys();

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SCHEMA_H_
