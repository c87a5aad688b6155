// A run with Muon that stops and goes on: with the same bits, and with as many ranks as one likes.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/atomic_file.h"
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
                       "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2,\n"
                       "        num_attention_heads: 3, vocab_size: 50,\n"
                       "        max_position_embeddings: 8}\n"
                       "data: {train: {source: synthetic}, seq_len: 8}\n"
                       "run: {threads: 1, timeout_s: 60}\n"
                       "train: {micro_batch_size: 2, global_batch_size: 6, ema: {decay: 0.9}}\n"
                       "log: {every: 1}\n"
                       "optimizer: {name: muon, lr: 0.01, muon: {row_beta2: 0.9}}\n"
                       "checkpoint: {every: 2, keep_last: 9}\n"
                       "schedule: {name: constant, warmup_steps: 0}\n"}},
                     all);
}

void Train(const std::string& run, int world, int steps, Strings settings = {}) {
  settings.push_back("train.steps=" + std::to_string(steps));
  ASSERT_EQ(TrainRanks(world, Load(run, settings)), Strings(world, "0 "));
}

TEST(MuonResume, GoesOnWithTheSameBits) {
  const std::string through = UnusedPath("through"), stopped = UnusedPath("stopped");
  Train(through, 2, 4);
  Train(stopped, 2, 2);
  Train(stopped, 2, 4);
  EXPECT_EQ(CheckpointFiles(stopped), CheckpointFiles(through));
  const Strings codes = {"optimizer.state_dtype=8bit", "model.hidden_size=48",
                         "optimizer.muon.row_beta2=null"};
  const std::string coded = UnusedPath("coded"), stopped_coded = UnusedPath("stopped_coded");
  Train(coded, 2, 4, codes);
  Train(stopped_coded, 2, 2, codes);
  Train(stopped_coded, 2, 4, codes);
  EXPECT_EQ(CheckpointFiles(stopped_coded), CheckpointFiles(coded));
  EXPECT_EQ(CheckpointReader(coded + "/checkpoints/step_4").manifest().FindState("row_v"), nullptr);
  // Matrices have one moment, all else two.
  CheckpointReader reader(through + "/checkpoints/step_4");
  int whole = 0;
  for (const FlatParameter& flat : reader.manifest().flat_parameters) {
    whole += flat.dtypes.whole ? 1 : 0;
    EXPECT_EQ(FlatHasState(flat, "v"), !flat.dtypes.whole) << flat.name;
  }
  EXPECT_EQ(whole, 2);
  // Outputs of four matrices of 24, and of two as wide as the MLP, by block.
  const StateFormat* const moments = reader.manifest().FindState("row_v");
  ASSERT_NE(moments, nullptr);
  EXPECT_EQ(moments->tensors.size(), 2u * 6);
  std::set<int> writers;
  for (int file = 0; file < 2; ++file) {
    for (const ManifestSlice& slice : reader.manifest().files[file].slices) {
      if (slice.state == "row_v") writers.insert(file);
    }
  }
  EXPECT_EQ(writers, (std::set<int>{0, 1}));
}

// Three ranks go on from what two have saved, to rounding as two would.
TEST(MuonResume, AnyNumberOfRanksReadsTheState) {
  const std::string two = UnusedPath("two"), three = UnusedPath("three");
  Train(two, 2, 4);
  Train(three, 2, 2);
  Train(three, 3, 4);
  const auto values = [&](const std::string& run, const char* state) {
    CheckpointReader reader(run + "/checkpoints/step_4");
    std::vector<float> all;
    for (const FlatParameter& flat : reader.manifest().flat_parameters) {
      for (const Placement& p : flat.parameters) {
        std::vector<float> of(p.size());
        reader.Read(
            state, p.name, p.shape, 0,
            View(reinterpret_cast<std::byte*>(of.data()), DType::kFloat32, Shape{p.size()}));
        all.insert(all.end(), of.begin(), of.end());
      }
    }
    return all;
  };
  const auto moments = [](const std::string& run) {
    CheckpointReader reader(run);
    std::vector<float> all;
    for (const OwnTensor& tensor : reader.manifest().FindState("row_v")->tensors) {
      std::vector<float> of(tensor.shape.NumElements());
      reader.ReadTensor(
          "row_v", tensor, 0,
          View(reinterpret_cast<std::byte*>(of.data()), DType::kFloat32, tensor.shape));
      all.insert(all.end(), of.begin(), of.end());
    }
    return all;
  };
  const std::vector<float> want = moments(two + "/checkpoints/step_4");
  const std::vector<float> got = moments(three + "/checkpoints/step_4");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i] / want[i], 1, 1e-3) << i;
  // And as `checkpoint reshard` would have it, whose writers own no matrix.
  ReshardCheckpoint(two + "/checkpoints/step_4", 3, 3, two + "/resharded", nullptr);
  EXPECT_EQ(moments(two + "/resharded"), want);
  for (const char* state : {"master", "m", "ema"}) {
    const std::vector<float> want = values(two, state), got = values(three, state);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3) << state << i;
  }
}

TEST(MuonResume, AnotherOptimizerIsRefused) {
  const std::string run = UnusedPath("other");
  Train(run, 1, 2);
  const std::string outcome =
      TrainRanks(1, Load(run, {"train.steps=4", "optimizer.name=adamw"}))[0];
  EXPECT_NE(outcome.find("has muon, the recipe has adamw"), std::string::npos) << outcome;
  const std::string rows =
      TrainRanks(1, Load(run, {"train.steps=4", "optimizer.muon.row_beta2=null"}))[0];
  EXPECT_NE(rows.find("has 0.9, the recipe has null"), std::string::npos) << rows;
}

}  // namespace
}  // namespace fsdp
