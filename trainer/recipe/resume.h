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

// What differs and is not free on a resume, in the schema's order. Free are run.*, log.*,
// checkpoint.*, eval.*, fsdp.* and the keys that IsFree() lists (resume.cc).
std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now);

// Those of them that now.checkpoint.allow_changed lets be, as "key: before -> now". Throws
// ConfigError with a line for each of the others: both values, and what to do. `from`: the
// checkpoint's directory.
std::vector<std::string> CheckResume(const Recipe& before, const Recipe& now,
                                     const std::string& from);

// What ranks compare before the first step, as FlattenRecipe gives it: everything but run.threads
// and run.dir, which hosts of one run may have to set differently.
std::vector<std::pair<std::string, std::string>> SharedSettings(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
