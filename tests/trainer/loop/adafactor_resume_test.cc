// A run with Adafactor that stops and goes on: with the same bits, and with as many ranks as one
// likes.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::CheckpointFiles;
using testing::TrainRanks;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

Recipe Load(const std::string& run, const Strings& more) {
  Strings all = {"run.dir=" + run};
  all.insert(all.end(), more.begin(), more.end());
  return ParseRecipe({{"r.yaml",
                       "model: {family: llama, hidden_size: 24, num_hidden_layers: 2,\n"
                       "        intermediate_size: 40, num_attention_heads: 4,\n"
                       "        num_key_value_heads: 2, vocab_size: 50,\n"
                       "        max_position_embeddings: 8}\n"
                       "data: {train: {source: synthetic}, seq_len: 8}\n"
                       "run: {threads: 1, timeout_s: 60}\n"
                       "train: {micro_batch_size: 2, global_batch_size: 6, ema: {decay: 0.9}}\n"
                       "log: {every: 1}\n"
                       "optimizer: {name: adafactor, lr: 0.01}\n"
                       "checkpoint: {every: 2, keep_last: 9}\n"
                       "schedule: {name: constant, warmup_steps: 0}\n"}},
                     all);
}

void Train(const std::string& run, int world, int steps, Strings settings = {}) {
  settings.push_back("train.steps=" + std::to_string(steps));
  ASSERT_EQ(TrainRanks(world, Load(run, settings)), Strings(world, "0 "));
}

// By "<state>/<tensor>".
std::map<std::string, std::vector<float>> Values(const std::string& run, int step) {
  CheckpointReader reader(run + "/checkpoints/step_" + std::to_string(step));
  std::map<std::string, std::vector<float>> values;
  const auto view = [](std::vector<float>& of) {
    return View(reinterpret_cast<std::byte*>(of.data()), DType::kFloat32,
                Shape{static_cast<int64_t>(of.size())});
  };
  for (const StateFormat& state : reader.manifest().states) {
    for (const OwnTensor& tensor : state.tensors) {
      std::vector<float>& of = values[state.name + "/" + tensor.name];
      of.resize(tensor.shape.NumElements());
      reader.ReadTensor(state.name, tensor, 0, view(of).Reshape(tensor.shape));
    }
    for (const FlatParameter& flat : reader.manifest().flat_parameters) {
      if (!state.tensors.empty() || !FlatHasState(flat, state.name)) continue;
      for (const Placement& p : flat.parameters) {
        std::vector<float>& of = values[state.name + "/" + p.name];
        of.resize(p.size());
        reader.Read(state.name, p.name, p.shape, 0, view(of));
      }
    }
  }
  return values;
}

TEST(AdafactorResume, GoesOnWithTheSameBits) {
  for (const char* const save : {"checkpoint.async=false", "checkpoint.async=true"}) {
    const std::string through = UnusedPath("through"), stopped = UnusedPath("stopped");
    Train(through, 2, 4, {save});
    Train(stopped, 2, 2, {save});
    Train(stopped, 2, 4, {save});
    EXPECT_EQ(CheckpointFiles(stopped), CheckpointFiles(through));
    const auto values = Values(through, 4);
    EXPECT_EQ(values.at("factor/model.layers.1.self_attn.k_proj.weight.rows").size(), 12u);
    EXPECT_EQ(values.at("factor/model.layers.1.self_attn.k_proj.weight.columns").size(), 24u);
    EXPECT_TRUE(values.contains("v/model.norm.weight"));
    EXPECT_FALSE(values.contains("v/model.embed_tokens.weight"));
  }
}

// Every value is the saved one: a run that goes on at another number of ranks and saves at once
// would write it. Its next steps are those of the first to rounding.
TEST(AdafactorResume, AnyNumberOfRanksReadsTheState) {
  const std::string two = UnusedPath("two"), three = UnusedPath("three");
  Train(two, 2, 4);
  Train(three, 2, 2);
  EXPECT_EQ(Values(three, 2), Values(two, 2));
  Train(three, 3, 4);
  const auto want = Values(two, 4), got = Values(three, 4);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(got.at(name)[i], values[i], 1e-4) << name << " " << i;
    }
  }
}

TEST(AdafactorResume, OtherKeysAndOptimizersAreRefused) {
  const std::string run = UnusedPath("other");
  Train(run, 1, 2);
  const auto outcome = [&](const char* setting) {
    return TrainRanks(1, Load(run, {"train.steps=4", setting}))[0];
  };
  EXPECT_NE(outcome("optimizer.name=adamw").find("has adafactor, the recipe has adamw"),
            std::string::npos);
  EXPECT_NE(outcome("optimizer.adafactor.d=2").find("optimizer.adafactor.d"), std::string::npos);
}

}  // namespace
}  // namespace fsdp
