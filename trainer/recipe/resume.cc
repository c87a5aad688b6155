#include "trainer/recipe/resume.h"

#include <algorithm>
#include <map>
#include <span>

#include "trainer/core/errors.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/shape_fields.h"

namespace fsdp {
namespace {

bool IsFree(const std::string& key) {
  for (const char* prefix :
       {"run.", "log.", "checkpoint.", "eval.", "fsdp.", "data.valid.", "data.valid["}) {
    if (key.starts_with(prefix)) return true;
  }
  return key == "data.valid" || key == "data.cache" || key == "data.allow_changed" ||
         key == "train.steps";
}

// A dropout that nobody has given is that of init_from's files.
bool IsTakenOver(const Recipe& recipe, const std::string& key) {
  if (!recipe.model.init_from || recipe.places.count(key) > 0) return false;
  const std::span<const recipe::Dropout> all = recipe::Dropouts();
  return std::any_of(all.begin(), all.end(), [&](const recipe::Dropout& dropout) {
    return key == "model." + std::string(dropout.name);
  });
}

}  // namespace

std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now) {
  constexpr const char* kAbsent = "absent";
  std::map<std::string, std::string> left;
  // A run records the dropouts that it trains with; builds that did not know one trained without.
  Recipe recorded = before;
  for (const recipe::Dropout& dropout : recipe::Dropouts()) {
    if (auto& rate = recorded.model.*dropout.member; !rate) rate = 0;
  }
  for (auto& [key, value] : FlattenRecipe(recorded)) left[key] = value;
  std::vector<RecipeDifference> differences;
  for (const auto& [key, value] : FlattenRecipe(now)) {
    const auto old = left.find(key);
    const std::string was = old == left.end() ? kAbsent : old->second;
    if (old != left.end()) left.erase(old);
    if (was != value && !IsFree(key)) differences.push_back({key, was, value});
  }
  for (const auto& [key, value] : left) {
    if (!IsFree(key)) differences.push_back({key, value, kAbsent});
  }
  return differences;
}

void CheckResume(const Recipe& before, const Recipe& now) {
  std::string text;
  for (const RecipeDifference& difference : ResumeDifferences(before, now)) {
    if (!text.empty()) text += "\n";
    const bool taken = IsTakenOver(now, difference.key);
    text +=
        now.Mistake(difference.key, "the run to resume has " + difference.before + ", " +
                                        (taken ? *now.model.init_from : "the recipe") + " has " +
                                        difference.now + ": may not differ on a resume" +
                                        (taken ? "; give the recipe the run's" : ""));
  }
  if (!text.empty()) throw ConfigError(text);
}

std::vector<std::pair<std::string, std::string>> SharedSettings(const Recipe& recipe) {
  auto settings = FlattenRecipe(recipe);
  std::erase_if(settings, [](const auto& setting) {
    return setting.first == "run.threads" || setting.first == "run.dir" ||
           setting.first == "data.cache";
  });
  return settings;
}

}  // namespace fsdp
