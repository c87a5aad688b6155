// Flags that several commands have.
#ifndef FSDP_TRAIN_CMD_SHARED_FLAGS_H_
#define FSDP_TRAIN_CMD_SHARED_FLAGS_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/core/command_line.h"
#include "trainer/core/dtype.h"
#include "trainer/recipe/load.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

struct RecipeFlags {
  std::vector<std::string> files;
  std::vector<std::string> overrides;
};

// --config FILE and --set KEY=VALUE, each any number of times.
Flag ConfigFlag(std::vector<std::string>* files);
Flag SetFlag(std::vector<std::string>* overrides);

// Throws ConfigError, also where --config is missing. `more` finds further mistakes; may be null.
Recipe LoadRecipe(const RecipeFlags& flags, const RecipeCheck& more = nullptr);

// Loads the recipe once, completed (loop/complete_recipe.h). Each call of the function returned
// loads it with the overrides `more` behind its own, and reads no tokenizer. No key in `more` may
// be of model or data. Both throw ConfigError.
std::function<Recipe(const std::vector<std::string>& more)> RecipeLoader(const RecipeFlags& flags);

// Commands that read a checkpoint.
Flag CheckpointFlag(std::string* path);  // --checkpoint DIR, or DIR alone.
Flag LatestFlag(bool* latest);
// ChooseCheckpoint()'s path. Its note goes to stderr.
std::string CheckpointToRead(const std::string& path, bool latest);

// Values of --device.
inline constexpr char kDevices[] = "auto,cpu,cuda";
WantedDevice WantedOf(const std::string& device);
ChosenDevice DeviceHere(const std::string& device);  // For a process that is no job's rank.

// Values of --dtype.
inline constexpr char kFloats[] = "fp32,bf16,fp16";
DType FloatNamed(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_SHARED_FLAGS_H_
