// Many simulations that differ in a few keys, as one table.
// Tests: tests/trainer/simulate/sweep_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SWEEP_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SWEEP_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/recipe/hardware.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {

struct Recipe;

// A key of the recipe, or world_size, and its values as YAML.
struct SweptKey {
  std::string key;
  std::vector<std::string> values;
};

// Reads "KEY=V1,V2" from each flag. Commas inside brackets, braces or quotes do not split. Throws
// ConfigError where one has no key or no value, or has a key that another one has.
std::vector<SweptKey> SweptKeys(const std::vector<std::string>& flags);

// The values of each point, a value a key. The last key changes fastest.
std::vector<std::vector<std::string>> SweptPoints(const std::vector<SweptKey>& keys);

struct Sweep {
  std::vector<SweptKey> keys;
  // The recipe with these settings on top of it, "KEY=VALUE" each. Throws ConfigError.
  std::function<Recipe(const std::vector<std::string>& settings)> recipe;
  int world = 1;                   // Where world_size is not swept.
  std::optional<int> local_world;  // As LocalWorldFor() takes it.
  double expert_load = 1;          // Place's.
  SimulateOptions options;
  std::string directory;  // Gets sweep.csv, sweep.json and sweep.html. Empty: nobody does.
  bool json = false;      // Prints the objects of `simulate --json`, not the table.
};

// Simulates all points, and prints them. Each is checked before the first one is simulated: throws
// ConfigError for a recipe or a world that is none. A point that does not fit says so in its row.
// Progress is on stderr. Throws CheckpointError where the directory cannot be written.
void SimulateSweep(const Sweep& sweep, const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SWEEP_H_
