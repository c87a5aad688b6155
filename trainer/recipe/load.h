// From files and overrides to a Recipe.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_
#define FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp {

// The files in order, then the overrides ("optimizer.lr=3e-4", the value in YAML) in order: the
// later one wins, maps key by key, lists as a whole. Throws ConfigError whose text has a line for
// every mistake, in the order of files and lines:
//   file:line:column: key: message          --set key=value: key: message
// Nothing but the files themselves is looked at: no data, no device, no world.
Recipe LoadRecipe(const std::vector<std::string>& files,
                  const std::vector<std::string>& overrides = {});

// The same for texts in memory; `name` stands for the file in messages.
struct RecipeText {
  std::string name;
  std::string text;
};
Recipe ParseRecipe(const std::vector<RecipeText>& texts,
                   const std::vector<std::string>& overrides = {});

// What only the world can tell: fsdp.shard_size against it. 1 <= local_world_size <= world_size:
// the ranks of all hosts and of this one. Throws ConfigError.
void CheckWorld(const Recipe& recipe, int64_t world_size, int64_t local_world_size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_
