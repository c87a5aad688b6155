// Two recipes of one run: what may differ.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_

#include <string>
#include <utility>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp {

struct RecipeDifference {
  std::string key;
  std::string before, now;  // As one line of YAML; whole maps and lists where the forms differ.
};

// What differs and may not on a resume. Free are run.*, log.*, checkpoint.*, eval.*, fsdp.*,
// data.valid, data.cache, data.allow_changed and train.steps. In the schema's order.
std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now);

// Throws ConfigError with a line for each difference that names both values.
void CheckResume(const Recipe& before, const Recipe& now);

// What ranks compare before the first step, as FlattenRecipe gives it: everything but run.threads
// and run.dir, which hosts of one run may have to set differently.
std::vector<std::pair<std::string, std::string>> SharedSettings(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
