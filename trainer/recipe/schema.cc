#include "trainer/recipe/schema.h"

#include "trainer/recipe/containers.h"
#include "trainer/recipe/sections.h"
#include "trainer/recipe/type_of.h"

namespace fsdp::recipe {
namespace {

const Type<Recipe>& RecipeType() {
  using R = Recipe;
  static const Type<Recipe> type = Map<R>({
      Key("run", &R::run, RunType(), "Where and how the run takes place."),
      Key("model", &R::model, ModelType(), "The model to train.").Required(),
      Key("data", &R::data, DataType(), "The data to train and evaluate on.").Required(),
      Key("train", &R::train, TrainType(), "How long to train, and in which batches."),
      Key("eval", &R::eval, EvalType(), "Evaluations during the run."),
      Key("optimizer", &R::optimizer, OptimizerType(), "How gradients become weights."),
      Key("schedule", &R::schedule, ScheduleType(), "The learning rate over the steps."),
      Key("fsdp", &R::fsdp, FsdpType(), "How the ranks share the model."),
      Key("checkpoint", &R::checkpoint, CheckpointType(), "Checkpoints on disk."),
      Key("log", &R::log, LogType(), "Output and records."),
  });
  return type;
}

Json BuildSchema() {
  Json schema = Json::Object({{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                              {"title", "fsdp-train recipe"}});
  schema.Update(RecipeType()->Schema());
  return schema;
}

void AddKeys(const Json& schema, const std::string& prefix, std::vector<std::string>& keys) {
  for (const Json& form : schema.ElementsOf("anyOf")) AddKeys(form, prefix, keys);
  const Json* const properties = schema.Find("properties");
  if (properties == nullptr) return;
  for (const auto& [name, property] : properties->Members()) {
    keys.push_back(prefix + name);
    AddKeys(property, prefix + name + ".", keys);
  }
}

}  // namespace

const Json& RecipeSchema() {
  static const Json schema = BuildSchema();
  return schema;
}

void ReadRecipe(const YamlNode& node, RecipeReader& reader, Recipe& recipe) {
  RecipeType().Read(node, "", reader, recipe);
}

Json WriteRecipe(const Recipe& recipe) { return RecipeType().Write(recipe); }

std::vector<std::string> KnownKeys() {
  std::vector<std::string> keys;
  AddKeys(RecipeSchema(), "", keys);
  return keys;
}

}  // namespace fsdp::recipe
