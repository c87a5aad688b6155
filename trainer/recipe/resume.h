// Which settings may differ between two recipes of one run.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
#define FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_

#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct Recipe;

struct RecipeDifference {
  std::string key;
  std::string before, now;  // As one line of YAML; whole maps and lists where the forms differ.
};

// The differences that a resume does not allow by itself, in the schema's order. Allowed are run.*,
// log.*, checkpoint.*, eval.*, fsdp.*, fields of models that tune alone (Field::is_tuning) and the
// keys that IsFree() lists (resume.cc).
std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now);

// The differences that now.checkpoint.allow_changed allows, as "key: before -> now". Throws
// ConfigError with a line for each other one: both values, and what to do. `from`: the checkpoint's
// directory.
std::vector<std::string> CheckResume(const Recipe& before, const Recipe& now,
                                     const std::string& from);

// The settings that ranks compare before the first step, as FlattenRecipe gives them: all but those
// that hosts of one run may have to set differently (run.threads, run.dir, data.cache,
// data.threads).
std::vector<std::pair<std::string, std::string>> SharedSettings(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_RESUME_H_
