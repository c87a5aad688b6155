// Makes a Recipe of files and overrides.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_
#define FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace fsdp {

struct Recipe;
struct TrainRecipe;
struct ShapeConflict;

// The files in order, then the overrides ("optimizer.lr=3e-4", the value in YAML) in order: the
// later one wins, maps key by key, lists as a whole. Throws ConfigError whose text has a line for
// every mistake, in the order of files and lines:
//   file:line:column: key: message          --set key=value: key: message
// Reads only the recipe's files: no data, no device, no world. `check` may look further, also at a
// recipe with mistakes, and its conflicts are reported among them. So may `complete`: it gets the
// recipe as read, `places` included, before defaults are derived from other keys, and the settings
// that it fills in count as given.
using RecipeCheck = std::function<std::vector<ShapeConflict>(const Recipe& recipe)>;
using RecipeCompletion = std::function<std::vector<ShapeConflict>(Recipe& recipe)>;
Recipe LoadRecipe(const std::vector<std::string>& files,
                  const std::vector<std::string>& overrides = {},
                  const RecipeCheck& check = nullptr, const RecipeCompletion& complete = nullptr);

// The same for texts in memory; `name` stands for the file in messages.
struct RecipeText {
  std::string name;
  std::string text;
};
Recipe ParseRecipe(const std::vector<RecipeText>& texts,
                   const std::vector<std::string>& overrides = {},
                   const RecipeCheck& check = nullptr, const RecipeCompletion& complete = nullptr);

// Checks fsdp.shard_size, fsdp.reshard_after_forward and a rank's micro-batches against the world:
// world_size ranks on all hosts, local_world_size (1 to world_size) on this one. The recipe may
// have other mistakes, too.
std::vector<ShapeConflict> WorldConflicts(const Recipe& recipe, int64_t world_size,
                                          int64_t local_world_size);
// Throws ConfigError that names them all.
void CheckWorld(const Recipe& recipe, int64_t world_size, int64_t local_world_size);

// Checks fsdp.reshard_after_forward against F = shard_size. Throws ConfigError.
void CheckReshard(const Recipe& recipe, int64_t shard_size);

// The divisors of n in [least, most] for messages: "1, 2, 3 or 6"; may be empty.
std::string DivisorsOf(int64_t n, int64_t least = 1,
                       int64_t most = std::numeric_limits<int64_t>::max());

// The ranks and the work that a step's samples leave unused, with cures, where there are idle ranks
// or it is at least 1 %; otherwise "". Samples are dealt as data/loader.h says.
std::string WhatIsUnused(const TrainRecipe& train, int64_t world_size);

// The key that a flag of another trainer's command line sets, such as `--learning_rate` or
// `--training.steps=5`; empty where there is none.
std::string KeyOfFlag(const std::string& flag);

// Settings that are valid but hardly meant, a line each.
std::vector<std::string> Advice(const Recipe& recipe, int64_t world_size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_LOAD_H_
