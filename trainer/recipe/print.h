// The recipe and its schema as text.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_PRINT_H_
#define FSDP_TRAIN_TRAINER_RECIPE_PRINT_H_

#include <string>
#include <utility>
#include <vector>

namespace fsdp {

class JsonTree;
struct Recipe;

// All keys, as YAML in the schema's order. LoadRecipe reads the same recipe back.
std::string PrintRecipe(const Recipe& recipe);

// (key with its dots, value as one line of YAML) for every leaf, in the schema's order.
std::vector<std::pair<std::string, std::string>> FlattenRecipe(const Recipe& recipe);

std::string RecipeJsonSchema();     // JSON Schema, draft 2020-12.
std::string RecipeDocumentation();  // docs/recipe.md.

namespace recipe {
// One line of YAML, which ParseYaml() reads as the same value. Lists and maps are in brackets.
std::string YamlValue(const JsonTree& value);
}  // namespace recipe

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_PRINT_H_
