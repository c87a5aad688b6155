// Runs with Muon and Adafactor, and with experts in pieces, that stop and go on: with the same
// bits, and with as many ranks as one likes.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::CheckpointFiles;
using testing::TrainRanks;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

constexpr char kMuon[] =
    "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 3,\n"
    "        vocab_size: 50, max_position_embeddings: 8}\n"
    "optimizer: {name: muon, lr: 0.01, muon: {row_beta2: 0.9}}\n";
constexpr char kAdafactor[] =
    "model: {family: llama, hidden_size: 24, num_hidden_layers: 2, intermediate_size: 40,\n"
    "        num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 50,\n"
    "        max_position_embeddings: 8}\n"
    "optimizer: {name: adafactor, lr: 0.01}\n";

constexpr char kMixture[] =
    "model: {family: moe, hidden_size: 24, num_hidden_layers: 2, intermediate_size: 16,\n"
    "        num_attention_heads: 4, num_key_value_heads: 2, num_experts: 6,\n"
    "        num_experts_per_tok: 2, vocab_size: 50, max_position_embeddings: 8}\n"
    "optimizer: {lr: 0.01}\n";

Recipe Load(const std::string& run, const char* text, const Strings& more) {
  Strings all = {"run.dir=" + run};
  all.insert(all.end(), more.begin(), more.end());
  return ParseRecipe({{"r.yaml", text},
                      {"s.yaml",
                       "data: {train: {source: synthetic}, seq_len: 8}\n"
                       "run: {threads: 1, timeout_s: 60}\n"
                       "train: {micro_batch_size: 2, global_batch_size: 6, ema: {decay: 0.9}}\n"
                       "log: {every: 1}\n"
                       "checkpoint: {every: 2, keep_last: 9}\n"
                       "schedule: {name: constant, warmup_steps: 0}\n"}},
                     all);
}

void TrainTo(const char* text, const std::string& run, int world, int steps, Strings settings) {
  settings.push_back("train.steps=" + std::to_string(steps));
  ASSERT_EQ(TrainRanks(world, Load(run, text, settings)), Strings(world, "0 "));
}
void TrainMuon(const std::string& run, int world, int steps, const Strings& settings = {}) {
  TrainTo(kMuon, run, world, steps, settings);
}
void TrainAdafactor(const std::string& run, int world, int steps, const Strings& settings = {}) {
  TrainTo(kAdafactor, run, world, steps, settings);
}

// By "<state>/<tensor>".
std::map<std::string, std::vector<float>> ValuesIn(const std::string& checkpoint) {
  CheckpointReader reader(checkpoint);
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

std::map<std::string, std::vector<float>> Values(const std::string& run, int step) {
  return ValuesIn(run + "/checkpoints/step_" + std::to_string(step));
}

TEST(MuonResume, GoesOnWithTheSameBits) {
  const std::string through = UnusedPath("through"), stopped = UnusedPath("stopped");
  TrainMuon(through, 2, 4);
  TrainMuon(stopped, 2, 2);
  TrainMuon(stopped, 2, 4);
  EXPECT_EQ(CheckpointFiles(stopped), CheckpointFiles(through));
  const std::string moved = UnusedPath("moved");  // To the host and back.
  TrainMuon(moved, 2, 1);
  TrainMuon(moved, 2, 3, {"fsdp.cpu_offload.optimizer=true"});
  TrainMuon(moved, 2, 4);
  EXPECT_EQ(Values(moved, 4), Values(through, 4));
  const Strings codes = {"optimizer.state_dtype=8bit", "model.hidden_size=48",
                         "optimizer.muon.row_beta2=null"};
  const std::string coded = UnusedPath("coded"), stopped_coded = UnusedPath("stopped_coded");
  TrainMuon(coded, 2, 4, codes);
  TrainMuon(stopped_coded, 2, 2, codes);
  TrainMuon(stopped_coded, 2, 4, codes);
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
  TrainMuon(two, 2, 4);
  TrainMuon(three, 2, 2);
  TrainMuon(three, 3, 4);
  const auto want = Values(two, 4), got = Values(three, 4);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    const bool rows = name.starts_with("row_v/");
    for (size_t i = 0; i < values.size() && !name.starts_with("v/"); ++i) {
      ASSERT_NEAR(got.at(name)[i] / (rows ? values[i] : 1), rows ? 1 : values[i], 1e-3)
          << name << i;
    }
  }
  // And as `checkpoint reshard` would have it, whose writers own no matrix.
  ReshardCheckpoint(two + "/checkpoints/step_4", 3, 3, two + "/resharded", nullptr);
  EXPECT_EQ(ValuesIn(two + "/resharded"), want);
}

TEST(MuonResume, AnotherOptimizerIsRefused) {
  const std::string run = UnusedPath("other");
  TrainMuon(run, 1, 2);
  const std::string outcome =
      TrainRanks(1, Load(run, kMuon, {"train.steps=4", "optimizer.name=adamw"}))[0];
  EXPECT_NE(outcome.find("has muon, the recipe has adamw"), std::string::npos) << outcome;
  const std::string rows =
      TrainRanks(1, Load(run, kMuon, {"train.steps=4", "optimizer.muon.row_beta2=null"}))[0];
  EXPECT_NE(rows.find("has 0.9, the recipe has null"), std::string::npos) << rows;
}

TEST(AdafactorResume, GoesOnWithTheSameBits) {
  for (const char* const save : {"checkpoint.async=false", "checkpoint.async=true"}) {
    const std::string through = UnusedPath("through"), stopped = UnusedPath("stopped");
    TrainAdafactor(through, 2, 4, {save});
    TrainAdafactor(stopped, 2, 2, {save});
    TrainAdafactor(stopped, 2, 4, {save});
    EXPECT_EQ(CheckpointFiles(stopped), CheckpointFiles(through));
    const auto values = Values(through, 4);
    EXPECT_EQ(values.at("factor/model.layers.1.self_attn.k_proj.weight.rows").size(), 12u);
    EXPECT_EQ(values.at("factor/model.layers.1.self_attn.k_proj.weight.columns").size(), 24u);
    EXPECT_TRUE(values.contains("v/model.norm.weight"));
    EXPECT_FALSE(values.contains("v/model.embed_tokens.weight"));
    const std::string moved = UnusedPath("moved");  // To the host and back.
    TrainAdafactor(moved, 2, 1, {save});
    TrainAdafactor(moved, 2, 3, {save, "fsdp.cpu_offload.optimizer=true"});
    TrainAdafactor(moved, 2, 4, {save});
    EXPECT_EQ(Values(moved, 4), values);
  }
}

// Every value is the saved one: a run that goes on at another number of ranks and saves at once
// would write it. Its next steps are those of the first to rounding.
TEST(AdafactorResume, AnyNumberOfRanksReadsTheState) {
  const std::string two = UnusedPath("two"), three = UnusedPath("three");
  TrainAdafactor(two, 2, 4);
  TrainAdafactor(three, 2, 2);
  EXPECT_EQ(Values(three, 2), Values(two, 2));
  TrainAdafactor(three, 3, 4);
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
  TrainAdafactor(run, 1, 2);
  const auto outcome = [&](const char* setting) {
    return TrainRanks(1, Load(run, kAdafactor, {"train.steps=4", setting}))[0];
  };
  EXPECT_NE(outcome("optimizer.name=adamw").find("has adafactor, the recipe has adamw"),
            std::string::npos);
  EXPECT_NE(outcome("optimizer.adafactor.d=2").find("optimizer.adafactor.d"), std::string::npos);
}

// Experts that were gathered in pieces, in others, and in none: the same bits of all states.
TEST(Experts, GoOnInOtherPieces) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    const Strings settings = {"optimizer.name=" + optimizer, "train.grad_clip=0"};
    const std::string whole = UnusedPath("whole"), run = UnusedPath("pieces");
    TrainTo(kMixture, whole, 2, 6, settings);
    int step = 0;
    for (const char* wrap :
         {"{policy: experts, expert_pieces: 3}", "{policy: experts, expert_pieces: 2}",
          "{policy: transformer_block}"}) {
      Strings with = settings;
      with.push_back(std::string("fsdp.auto_wrap=") + wrap);
      TrainTo(kMixture, run, 2, step += 2, with);
    }
    EXPECT_EQ(ValuesIn(run + "/checkpoints/step_6"), ValuesIn(whole + "/checkpoints/step_6"))
        << optimizer;
  }
}

}  // namespace
}  // namespace fsdp
