// Recipes at the ends of what the schema allows. A recipe that is read without a mistake trains a
// step, is refused by its plan, or comes to numbers that are not finite: no op has the last word,
// and nothing dies.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "tests/testing/everything.h"
#include "tests/testing/json.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/step_operations.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::Json;
using Strings = std::vector<std::string>;

constexpr uint64_t kSeed = 20261122;
#ifdef __SANITIZE_ADDRESS__
constexpr int kAll = 100;
#else
constexpr int kAll = 300;
#endif

constexpr char kBase[] =
    "run: {threads: 1, timeout_s: 60}\n"
    "data: {train: {source: synthetic}, seq_len: 16}\n"
    "train: {steps: 1, micro_batch_size: 2, global_batch_size: 4}\n"
    "eval: {every: 1, steps: 1}\n"
    "model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 32,\n"
    "        max_position_embeddings: 16, intermediate_size: 32, ";

struct NumericKey {
  std::string key;
  Strings values;
};

// The ends of the interval that the schema gives, and what is next to them.
void AddKeys(const Json& schema, const std::string& prefix, std::vector<NumericKey>& keys) {
  for (const auto& [name, property] : schema["properties"].items()) {
    const std::string key = prefix + name;
    if (property.contains("properties")) {
      AddKeys(property, key + ".", keys);
      continue;
    }
    // Names of directories and ports have no ends; time limits are not to come true.
    if (key.starts_with("run.t") || key == "run.store_port" || key == "run.threads") continue;
    const Json type = property.value("type", Json());
    const std::string kind = type.is_array()    ? type[0].get<std::string>()
                             : type.is_string() ? type.get<std::string>()
                                                : "";
    NumericKey it{key, {}};
    if (kind == "integer") {
      const int64_t low = property["minimum"], high = property["maximum"];
      for (const int64_t v : {low, low + 1, int64_t{3}, int64_t{256}, high / 2, high - 1, high}) {
        it.values.push_back(std::to_string(v));
      }
    } else if (kind == "number") {
      it.values = {"0",       "1",      "5e-324", "1e-300",         "1e-45",      "1e-39",
                   "1.2e-38", "1e-7",   "0.5",    "0.999999999999", "0.99999999", "2",
                   "1e9",     "3.4e38", "1e39",   "1e300"};
    }
    if (!it.values.empty()) keys.push_back(std::move(it));
  }
}

std::vector<NumericKey> Keys() {
  std::vector<NumericKey> keys;
  AddKeys(Json::parse(RecipeJsonSchema()), "", keys);
  keys.push_back(
      {"optimizer.betas", {"[0, 0]", "[0.9999999, 0]", "[0, 0.99999999]", "[0.5, 0.999]"}});
  keys.push_back({"train.ema", {"{decay: 0}", "{decay: 0.99999999999999989}"}});
  keys.push_back(
      {"data.valid", {"{fraction: 1e-300}", "{fraction: 0.0001}", "{fraction: 0.99999999}"}});
  keys.push_back({"data.train",
                  {"[{source: synthetic}, {source: synthetic, weight: 1e-300}]",
                   "[{source: synthetic}, {source: synthetic, weight: 1e9}]"}});
  keys.push_back({"optimizer.groups",
                  {"[{match: '*', lr_scale: 3e38}]", "[{match: '*', weight_decay: 3e38}]"}});
  keys.push_back({"model.rope_scaling",
                  {"{type: linear, factor: 1e300}", "{type: dynamic, factor: 1e9}",
                   "{type: llama3, factor: 1e30, original_max_position_embeddings: 1, "
                   "low_freq_factor: 1e-300, high_freq_factor: 1e300}",
                   "{type: yarn, factor: 1e300, original_max_position_embeddings: 16777216}",
                   "{type: yarn, factor: 2, original_max_position_embeddings: 1, beta_fast: 1e300, "
                   "beta_slow: 1e-300, attention_factor: 1e300}"}});
  keys.push_back({"optimizer.name", {"sgd"}});
  keys.push_back({"fsdp.sharding_strategy", {"no_shard", "shard_grad_op"}});
  keys.push_back({"train.activation_checkpointing", {"selective", "full"}});
  keys.push_back({"train.attention", {"math"}});
  return keys;
}

// "2 ", "3 ...": the exit code that the command would have, and what it would say.
std::string Outcome(const Recipe& recipe, testing::Rank& rank) {
  try {
    CheckWorld(recipe, 1, 1);
    const std::shared_ptr<Model> model = BuildModel(recipe, ShapeFor(recipe));
    const SessionOptions options = SessionOptionsFor(recipe, HostPlacement({0}), 1);
    const RunPlan plan = PlanRun(*model, options, 1, 1);
    const double flops = FlopsPerSample(*model, recipe.data.seq_len) *
                         static_cast<double>(recipe.train.global_batch_size);
    // A recipe that fits and would take minutes is known to fit.
    if (plan.fits() && (plan.memory.bytes() > (int64_t{200} << 20) || flops > 1e10))
      return "0 plan";
    Job job;
    job.store = rank.store;
    job.stop_requested = [] { return true; };
    return std::to_string(static_cast<int>(TrainRank(recipe, job)));
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  } catch (const std::exception& error) {
    return "1 " + std::string(error.what());
  }
}

TEST(ExtremeRecipes, TrainOrAreRefused) {
  const int recipes = testing::Everything() ? kAll : kAll / 2;
  const RandomStream random(kSeed + testing::Part(180), "extreme recipes");
  uint64_t n = 0;
  const std::vector<NumericKey> keys = Keys();
  std::map<std::string, int> ends;
  const std::string directory = ::testing::TempDir() + "/extreme";
  for (int i = 0; i < recipes; ++i) {
    Strings overrides = {"run.dir=" + directory};
    for (uint64_t k = random.Below(n++, 3); k < 3; ++k) {
      const NumericKey& key = keys[random.Below(n++, keys.size())];
      overrides.push_back(key.key + "=" + key.values[random.Below(n++, key.values.size())]);
    }
    const std::string family = random.Below(n++, 2) == 0 ? "gpt2" : "llama";
    std::string text = "seed " + std::to_string(kSeed) + ", " + family;
    for (const std::string& override : overrides) text += ", " + override;
    Recipe recipe;
    try {
      recipe = ParseRecipe({{"r", std::string(kBase) + "family: " + family + "}\n"}}, overrides,
                           ModelMistakes);
    } catch (const ConfigError&) {
      ++ends["mistake"];
      continue;
    }
    std::filesystem::remove_all(directory);
    const testing::Outcome outcome =
        testing::RunProcessRanks(1, [&](testing::Rank& rank) { return Outcome(recipe, rank); })[0];
    const std::string end = outcome.error.empty() ? outcome.result : outcome.error;
    const std::string code = end.substr(0, end.find(' '));
    ++ends[code];
    // 4: the synthetic data is shorter than a sample.
    const bool good =
        code == "0" || code == "75" || code == "2" || code == "3" || code == "4" || code == "7";
    EXPECT_TRUE(good) << end << "\n" << text;
  }
  for (const auto& [end, count] : ends) std::cout << end << ": " << count << "\n";
  EXPECT_GT(ends["75"] + ends["0"], recipes / 10);
  EXPECT_GT(ends["mistake"], recipes / 10);
}

}  // namespace
}  // namespace fsdp
