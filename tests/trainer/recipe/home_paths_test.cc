// `~` is the home directory in every key that is a path; the schema says which keys are.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/kept_environment.h"
#include "trainer/recipe/reader.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/schema.h"
#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {
namespace {

// All keys that take free text, by whether it is a path.
void VisitTexts(const Json& schema, const std::string& key,
                const std::function<void(const std::string& key, bool is_path)>& visit) {
  for (const Json& form : schema.ElementsOf("anyOf")) VisitTexts(form, key, visit);
  if (const Json* const items = schema.Find("items")) VisitTexts(*items, key, visit);
  if (const Json* const members = schema.Find("properties")) {
    for (const auto& [name, member] : members->Members()) {
      VisitTexts(member, key.empty() ? name : key + "." + name, visit);
    }
  }
  const Json* const type = schema.Find("type");
  if (type == nullptr || schema.Contains("enum")) return;
  bool text = *type == "string";
  if (type->IsList()) {
    for (size_t i = 0; i < type->size(); ++i) text |= (*type)[i] == "string";
  }
  const Json* const pattern = schema.Find("pattern");
  const bool bytes = pattern != nullptr && pattern->Text().starts_with("^[0-9]");
  if (text && !bytes) visit(key, schema.Contains("format"));
}

// The recipe with this key alone; the mistakes of its value go into `said`.
Recipe ReadKey(const std::string& key, const std::string& value, std::string& said) {
  std::string text = value, rest = key;
  while (true) {
    const size_t dot = rest.rfind('.');
    text = "{" + rest.substr(dot + 1) + ": " + text + "}";
    if (dot == std::string::npos) break;
    rest.resize(dot);
  }
  RecipeReader reader(KnownKeys());
  Recipe recipe;
  ReadRecipe(*ParseYaml(text, 0, true, reader.mistakes()), reader, recipe);
  for (const RecipeMistake& mistake : reader.mistakes()) {
    said += ShowPlace(mistake.place, {"r"}) + ": " + mistake.key + ": " + mistake.message + "\n";
  }
  return recipe;
}

TEST(HomePaths, ATildeInEveryKeyThatIsAPath) {
  const testing::KeptEnvironment kept;
  std::set<std::string> paths;
  VisitTexts(RecipeSchema(), "", [&](const std::string& key, bool is_path) {
    if (is_path) paths.insert(key);
  });
  EXPECT_EQ(paths, (std::set<std::string>{
                       "checkpoint.resume", "data.cache", "data.train.labels", "data.train.paths",
                       "data.train.template", "data.train.tokenizer", "data.valid.labels",
                       "data.valid.paths", "data.valid.template", "data.valid.tokenizer",
                       "fsdp.cpu_offload.spill", "model.base", "model.init_from", "run.dir"}));
  for (const std::string& key : paths) {
    for (const auto& [home, value, want] :
         {std::tuple("/home/u v", "~/x.json", "\"/home/u v/x.json\""),
          {"/h", "~/a/~b.model", "\"/h/a/~b.model\""},
          {"/h", "./~/x.json", "\"./~/x.json\""},
          {"/h", "~nobody_is_called_so/x.json", "\"~nobody_is_called_so/x.json\""}}) {
      ::setenv("HOME", home, 1);
      std::string said;
      const std::string text = WriteRecipe(ReadKey(key, value, said)).Dump();
      EXPECT_EQ(said, "") << key;
      EXPECT_NE(text.find(want), std::string::npos) << key << ": " << want << "\n" << text;
    }
  }
}

// A new key of text is put on this list, or is a Path().
TEST(HomePaths, OtherTextsAreNone) {
  std::set<std::string> others;
  VisitTexts(RecipeSchema(), "", [&](const std::string& key, bool is_path) {
    if (!is_path && !key.starts_with("data.valid")) others.insert(key);
  });
  EXPECT_EQ(others,
            (std::set<std::string>{
                "data.train.categorical", "data.train.column", "data.train.completion",
                "data.train.date", "data.train.dense", "data.train.label", "data.train.prompt",
                "eval.sample.prompt", "fsdp.mixed_precision.keep_fp32", "model.lora.base_exclude",
                "model.lora.full", "model.lora.targets", "optimizer.groups.match", "run.name"}));
}

}  // namespace
}  // namespace fsdp::recipe
