// The rules that join keys of the recipe's section `optimizer`, with each other and with others.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_OPTIMIZER_RULES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_OPTIMIZER_RULES_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp::recipe {

// A rule over `keys`, and what its break is reported with.
using Require = std::function<void(bool holds, const std::vector<std::string>& keys,
                                   const std::string& message)>;

void CheckOptimizer(const Recipe& recipe, const Require& require);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_OPTIMIZER_RULES_H_
