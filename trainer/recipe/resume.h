// Two recipes of one run: what may differ, and a number to tell them apart.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp {

struct RecipeDifference {
  std::string key;
  std::string before, now;  // As one line of YAML; "absent" where a recipe has no such key.
};

// What differs and may not on a resume. Free are run.*, log.*, checkpoint.*, eval.*, fsdp.*,
// data.valid and train.steps. In the schema's order.
std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now);

// Throws ConfigError with a line for each difference that names both values.
void CheckResume(const Recipe& before, const Recipe& now);

// Of the resolved text, for ranks to compare before the first step. Everything counts but
// run.threads and run.dir, which hosts of one run may have to set differently.
uint64_t HashRecipe(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
