#include "trainer/recipe/resume.h"

#include "trainer/core/errors.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/schema.h"

namespace fsdp {
namespace {

using recipe::Json;
using recipe::WriteRecipe;
using recipe::YamlValue;

bool IsFree(const std::string& key) {
  for (const char* prefix :
       {"run.", "log.", "checkpoint.", "eval.", "fsdp.", "data.valid.", "data.valid["}) {
    if (key.starts_with(prefix)) return true;
  }
  if (key == "data.threads") return true;
  return key == "data.valid" || key == "data.cache" || key == "data.allow_changed" ||
         key == "data.allow_invalid_text" || key == "train.steps" || key == "train.epochs" ||
         key == "train.micro_batch_size" || key == "train.max_skipped_steps" ||
         key == "train.activation_checkpointing" || key == "train.activation_offload" ||
         key == "optimizer.state_dtype" ||
         (key.starts_with("optimizer.groups[") && key.ends_with("].state_dtype"));
}

// The key's name in checkpoint.allow_changed; empty where it has none.
std::string ChangeOf(const std::string& key) {
  for (const std::string& change : recipe::AllowedChanges()) {
    if (key == change || key.starts_with(change + ".")) return change;
  }
  return "";
}

// Goes down only where both have one form; a value of another form is named once, whole.
void Compare(const std::string& key, const Json& before, const Json& now,
             std::vector<RecipeDifference>& differences) {
  if (before.IsObject() && now.IsObject()) {
    for (const auto& [name, value] : before.Members()) {
      const std::string inner = (key.empty() ? "" : key + ".") + name;
      Compare(inner, value, now.Contains(name) ? now[name] : Json(), differences);
    }
    return;
  }
  if (before.IsList() && now.IsList() && !before.empty() && before.size() == now.size() &&
      before[0].IsObject()) {
    for (size_t i = 0; i < before.size(); ++i) {
      Compare(key + "[" + std::to_string(i) + "]", before[i], now[i], differences);
    }
    return;
  }
  if (before != now && !IsFree(key)) {
    differences.push_back({key, YamlValue(before), YamlValue(now)});
  }
}

}  // namespace

std::vector<RecipeDifference> ResumeDifferences(const Recipe& before, const Recipe& now) {
  // A run records its dropouts; one that is not recorded was not known to that build and is 0.
  Recipe recorded = before;
  recipe::FillDropouts(recorded.model.fields);
  Recipe asked = now;
  for (const recipe::ModelField& of : recipe::ModelFields()) {
    if (!of.field.is_tuning) continue;
    recorded.model.fields.erase(of.field.name);
    asked.model.fields.erase(of.field.name);
  }
  // A field left out is init_from's, whose shape is compared with the recipe's anyway.
  if (!recorded.model.family || !asked.model.family) {
    recorded.model.family.reset();
    asked.model.family.reset();
  }
  if (recorded.model.init_from && asked.model.init_from) {
    for (const recipe::ModelField& of : recipe::ModelFields()) {
      const std::string& name = of.field.name;
      if (of.field.is_dropout) continue;
      if (recorded.model.fields.contains(name) && asked.model.fields.contains(name)) continue;
      recorded.model.fields.erase(name);
      asked.model.fields.erase(name);
    }
  }
  // Coded weights are compared by their hash, wherever they lie by now.
  if (asked.model.lora && asked.model.lora->base != LoraBase::kNone) {
    asked.model.init_from = recorded.model.init_from;
    asked.model.base = recorded.model.base;
  }
  std::vector<RecipeDifference> differences;
  Compare("", WriteRecipe(recorded), WriteRecipe(asked), differences);
  return differences;
}

std::vector<std::string> CheckResume(const Recipe& before, const Recipe& now,
                                     const std::string& from) {
  std::vector<std::string> allowed;
  std::string text;
  for (const RecipeDifference& difference : ResumeDifferences(before, now)) {
    const std::string change = ChangeOf(difference.key);
    if (now.checkpoint.Allows(change)) {
      allowed.push_back(difference.key + ": " + difference.before + " -> " + difference.now);
      continue;
    }
    std::string cure = "Put it back, or begin another run (run.name)";
    if (!change.empty()) {
      cure = "Put it back, or go on with it by checkpoint.allow_changed: [" + change + "]";
    } else if (!difference.key.starts_with("model.")) {
      cure += " from these weights (model.init_from: " + from + ")";
    }
    if (!text.empty()) text += "\n";
    text += now.Mistake(difference.key, "the run to resume has " + difference.before +
                                            ", the recipe has " + difference.now +
                                            ": may not differ on a resume. " + cure);
  }
  if (!text.empty()) throw ConfigError(text);
  return allowed;
}

std::vector<std::pair<std::string, std::string>> SharedSettings(const Recipe& recipe) {
  auto settings = FlattenRecipe(recipe);
  std::erase_if(settings, [](const auto& setting) {
    return setting.first == "run.threads" || setting.first == "run.dir" ||
           setting.first == "data.cache" || setting.first == "data.threads";
  });
  return settings;
}

}  // namespace fsdp
