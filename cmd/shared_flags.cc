#include "cmd/shared_flags.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "trainer/core/utf8.h"
#include "trainer/loop/chosen_checkpoint.h"
#include "trainer/loop/complete_recipe.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// One value a flag: the word that follows it is not swallowed, and [1, 2] in a value stays whole.
Flag ConfigFlag(std::vector<std::string>* files) {
  return {"--config", files, "A recipe (YAML). Later files override earlier ones.",
          FlagRules{.value = "FILE", .one_each = true}};
}

Flag SetFlag(std::vector<std::string>* overrides) {
  return {"--set", overrides,
          "Overrides one key, for example --set optimizer.lr=3e-4. The value is YAML.",
          FlagRules{.value = "KEY=VALUE", .one_each = true}};
}

Flag CheckpointFlag(std::string* path) {
  return {"--checkpoint,RUN_DIR", path,
          "A checkpoint, a run directory (its latest one, or its best if it stopped early) or a "
          "Hugging Face directory",
          FlagRules{.value = "DIR", .required = true}};
}

Flag LatestFlag(bool* latest) {
  return {"--latest", latest, "Take a run's latest checkpoint, also if it stopped early"};
}

std::string CheckpointToRead(const std::string& path, bool latest) {
  const ChosenCheckpoint chosen = ChooseCheckpoint(path, latest);
  if (!chosen.note.empty()) std::fprintf(stderr, "%s\n", Printable(chosen.note).c_str());
  return chosen.path;
}

Recipe LoadRecipe(const RecipeFlags& flags, const RecipeCheck& more) {
  const auto check = [&](const Recipe& recipe) {
    std::vector<ShapeConflict> mistakes = ModelMistakes(recipe);
    if (more) std::ranges::move(more(recipe), std::back_inserter(mistakes));
    return mistakes;
  };
  return LoadRecipe(flags.files, flags.overrides, check, CompleteRecipe);
}

std::function<Recipe(const std::vector<std::string>& more)> RecipeLoader(const RecipeFlags& flags) {
  return [flags, whole = LoadRecipe(flags)](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = flags.overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto complete = [&](Recipe& recipe) {
      recipe.model = whole.model;
      recipe.data = whole.data;
      recipe.fsdp.mixed_precision.keep_fp32 = whole.fsdp.mixed_precision.keep_fp32;
      recipe.notes = whole.notes;
      return std::vector<ShapeConflict>();
    };
    return LoadRecipe(flags.files, overrides, ModelMistakes, complete);
  };
}

WantedDevice WantedOf(const std::string& device) {
  return device == "cuda"  ? WantedDevice::kCuda
         : device == "cpu" ? WantedDevice::kCpu
                           : WantedDevice::kAuto;
}

ChosenDevice DeviceHere(const std::string& device) {
  return ChooseDevice(WantedOf(device), /*local_rank=*/0, /*local_world=*/1);
}

DType FloatNamed(const std::string& name) {
  return name == "fp32" ? DType::kFloat32 : name == "bf16" ? DType::kBFloat16 : DType::kFloat16;
}

}  // namespace fsdp
