// fsdp.cpu_offload.optimizer_share: auto, of ranks whose rates are given: in processes of their
// own.
#include "trainer/loop/share_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/comm/ranks.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "trainer/core/errors.h"
#include "trainer/core/whole_file.h"
#include "trainer/engine/update_share.h"
#include "trainer/loop/choices.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/train.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::UnusedPath;
using Strings = std::vector<std::string>;
using Rates = std::vector<UpdateRates>;  // By rank.

Recipe Tiny(const std::string& directory, const std::string& share, const Strings& more = {}) {
  Strings overrides = {"run.dir=" + directory,
                       "fsdp.cpu_offload={optimizer: true, optimizer_share: " + share + "}"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return ParseRecipe({{"tiny",
                       "run: {threads: 1, timeout_s: 60}\n"
                       "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 6,\n"
                       "        num_attention_heads: 2, vocab_size: 64,\n"
                       "        max_position_embeddings: 16}\n"
                       "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
                       "train: {steps: 3, micro_batch_size: 2, global_batch_size: 4}\n"
                       "checkpoint: {every: 1}\n"
                       "optimizer: {lr: 1.0e-2}\n"
                       "schedule: {name: constant}\n"}},
                     overrides);
}

// The exit code of each rank and what it said, "0 " where it is done. A rank that would measure
// where no rates are given fails.
Strings Train(const std::vector<Recipe>& recipes, const Rates& rates) {
  Strings ends;
  for (const testing::Outcome& outcome : testing::RunProcessRanks(
           static_cast<int>(recipes.size()), [&](testing::Rank& rank) -> std::string {
             const Recipe& recipe = recipes[rank.rank];
             Job job;
             job.rank = rank.rank;
             job.world = job.local_world = rank.size;
             job.store = rank.store;
             job.connect = [&](const std::string& name, const RankGroup& group) {
               return rank.join_group(name, group, {.timeout_s = recipe.run.timeout_s});
             };
             std::ostringstream said;
             job.console = &said;
             job.update_rates = [&] {
               return rates.empty() ? throw DeviceError("measured") : rates[rank.rank];
             };
             try {
               const int code = static_cast<int>(TrainRank(recipe, job));
               const bool line =
                   said.str().find("fsdp.cpu_offload.optimizer_share: 0.") != std::string::npos;
               return std::to_string(code) + (line ? " said" : " ");
             } catch (const Error& error) {
               return std::to_string(static_cast<int>(error.code())) + " " + error.what();
             }
           })) {
    ends.push_back(outcome.error.empty() ? outcome.result : outcome.error);
  }
  return ends;
}

// Rank 0 says the line.
const Strings kDone = {"0 said", "0 "};

double RecordedShare(const std::string& run) {
  return LoadRecipe({run + "/recipe.yaml"}).fsdp.cpu_offload.optimizer_share.value();
}

TEST(AutomaticShare, IsTheSmallestAndARunKeepsIt) {
  // The share that a rank would choose alone.
  const auto alone = [](double device) {
    const std::string run = UnusedPath("alone");
    EXPECT_EQ(Train({Tiny(run, "auto"), Tiny(run, "auto")}, {{device, 1}, {device, 1}}), kDone);
    return RecordedShare(run);
  };
  const double more = alone(2), less = alone(0.5);
  ASSERT_LT(less, more);
  ASSERT_GT(less, 0);

  const std::string run = UnusedPath("auto");
  const auto go_on = [&](int steps, const std::string& share, const Rates& rates) {
    const Recipe recipe = Tiny(run, share, {"train.steps=" + std::to_string(steps)});
    return Train({recipe, recipe}, rates);
  };
  EXPECT_EQ(go_on(3, "auto", {{2, 1}, {0.5, 1}}), kDone);
  EXPECT_EQ(RecordedShare(run), less);
  std::istringstream metrics(ReadWholeFile(run + "/metrics.jsonl"));
  std::string line;
  std::getline(metrics, line);
  EXPECT_EQ(nlohmann::json::parse(line)["optimizer_share"], less);

  EXPECT_EQ(go_on(5, "auto", {{100, 1}, {100, 1}}), kDone);  // Other rates by now.
  EXPECT_EQ(RecordedShare(run), less);
  EXPECT_EQ(go_on(6, "auto", {}), kDone);
  EXPECT_EQ(RecordedShare(run), less);

  const std::string given = UnusedPath("given");
  const Recipe recipe = Tiny(given, std::to_string(less), {"train.steps=6"});
  EXPECT_EQ(Train({recipe, recipe}, {}), Strings(2, "0 "));
  EXPECT_EQ(RecordedShare(given), less);
  EXPECT_TRUE(testing::CheckpointFiles(run) == testing::CheckpointFiles(given));

  // A number of the recipe's own counts, and is kept from then on.
  EXPECT_EQ(go_on(7, "0.75", {}), Strings(2, "0 "));
  EXPECT_EQ(go_on(8, "auto", {}), kDone);
  EXPECT_EQ(RecordedShare(run), 0.75);
}

// A run of another place, or of before: its number too, unless nothing was on the host.
TEST(AutomaticShare, ComesFromACheckpointWhereThereIsNoRecipe) {
  const std::string run = UnusedPath("first"), other = UnusedPath("second");
  ASSERT_EQ(Train({Tiny(run, "0.25")}, {}), Strings{"0 "});
  const Recipe recipe =
      Tiny(other, "auto", {"checkpoint.resume=" + run, "train.steps=4", "run.name=other"});
  ASSERT_EQ(Train({recipe}, {}), Strings{"0 said"});
  EXPECT_EQ(RecordedShare(other), 0.25);

  const std::string without = UnusedPath("without");
  ASSERT_EQ(Train({Tiny(without, "0", {"fsdp.cpu_offload.optimizer=false"})}, {}), Strings{"0 "});
  ASSERT_EQ(Train({Tiny(without, "auto", {"train.steps=4"})}, {{1, 1}}), Strings{"0 said"});
  EXPECT_GT(RecordedShare(without), 0);
}

// Without a checkpoint there is nothing to go on with.
TEST(AutomaticShare, OfAFailedStartIsForgotten) {
  const std::string run = UnusedPath("failed");
  ASSERT_EQ(Train({Tiny(run, "0.25", {"checkpoint.every=null", "train.steps=1"})}, {}),
            Strings{"0 "});
  fs::remove(run + "/metrics.jsonl");  // Which says that it came to its end.
  const Strings end = Train({Tiny(run, "auto")}, {});
  EXPECT_NE(end[0].find("measured"), std::string::npos) << end[0];
}

TEST(AutomaticShare, OfSomeRanksIsADisagreement) {
  const std::string run = UnusedPath("some");
  const Recipe number = Tiny(run, "0.5"), automatic = Tiny(run, "auto");
  for (const std::vector<Recipe>& recipes : {std::vector{number, automatic}, {automatic, number}}) {
    for (const std::string& end : Train(recipes, {})) {
      EXPECT_EQ(end.substr(0, 2), "2 ") << end;
      EXPECT_NE(end.find("fsdp.cpu_offload.optimizer_share"), std::string::npos) << end;
    }
  }
}

TEST(AutomaticShare, ThatCannotBeMeasuredIsEveryRanksError) {
  const std::string run = UnusedPath("broken");
  for (const std::string& end : Train({Tiny(run, "auto"), Tiny(run, "auto")}, {})) {
    EXPECT_EQ(end.substr(0, 2), "1 ") << end;
  }
  EXPECT_FALSE(fs::exists(run));
}

// The run as Resolve() has it before the share.
ResolvedRun UpToTheShare(const Recipe& recipe, int world = 1) {
  ResolvedRun run;
  run.place.world = run.place.local_world = world;
  run.recipe = recipe;
  run.shape = ShapeFor(recipe);
  run.model = BuildModel(recipe, run.shape);
  run.options = SessionOptionsFor(recipe, HostPlacement::InOrder(world, world), /*threads=*/1);
  return run;
}

// The line for people.
std::string Choose(ResolvedRun& run) {
  Choosing choosing{run};
  Make(ShareChoice(), choosing);
  return run.Of(ChoiceId::kShare).line;
}

// By the plan of a GPU that is not there: as many units as it has room for.
TEST(AutomaticShare, LeavesWhatDoesNotFitOnTheHost) {
  const Recipe automatic = Tiny(UnusedPath("room"), "auto");
  const ResolvedRun before = UpToTheShare(automatic);
  const auto planned = [&](double share, const PlanTarget& target) {
    SessionOptions with = before.options;
    with.executor.cpu_offload.optimizer_share = share;
    return PlanRun(*before.model, with, /*world=*/1, /*local_world=*/1, target);
  };
  const PlanTarget gpu{.device = DeviceType::kCuda};
  const int64_t least = planned(0, gpu).planned(), most = planned(1, gpu).planned();
  ASSERT_LT(least, most);
  Job job;
  job.update_rates = [] { return UpdateRates{1e9, 1}; };
  const auto chosen = [&](int64_t bytes) {
    ResolvedRun run = UpToTheShare(automatic);
    run.place.job = &job;
    run.target = gpu;
    run.target.room = {bytes, "room"};
    Choose(run);
    const double share = run.recipe.fsdp.cpu_offload.optimizer_share.value();
    EXPECT_EQ(run.options.executor.cpu_offload.optimizer_share, share);
    EXPECT_TRUE(share == 0 || planned(share, run.target).fits_device()) << bytes;
    return share;
  };
  EXPECT_EQ(chosen(2 * most), 1);
  EXPECT_EQ(chosen(least), 0);  // Libraries take some, too.
  EXPECT_EQ(chosen(least / 2), 0);
  double last = 0;
  for (int i = 0; i <= 8; ++i) {
    const double share = chosen(16 * (least + (most - least) * i / 8) / 15);
    EXPECT_GE(share, last);
    last = share;
  }
  EXPECT_EQ(last, 1);
  const double half = chosen(16 * (least + (most - least) / 2) / 15);
  EXPECT_GT(half, 0);
  EXPECT_LT(half, 1);
}

// Rates that are measured: there is no telling which.
TEST(AutomaticShare, IsMeasured) {
  ResolvedRun run = UpToTheShare(Tiny(UnusedPath("plan"), "auto"), /*world=*/2);
  const std::string line = Choose(run);
  EXPECT_TRUE(line.starts_with("fsdp.cpu_offload.optimizer_share: ")) << line;
  EXPECT_NE(line.find("measured"), std::string::npos) << line;
  const std::optional<double> share = run.recipe.fsdp.cpu_offload.optimizer_share;
  ASSERT_TRUE(share.has_value());
  run.chosen.clear();
  EXPECT_EQ(Choose(run), "");
  EXPECT_EQ(run.recipe.fsdp.cpu_offload.optimizer_share, share);
}

// Nor can it be on a machine that is not here.
TEST(AutomaticShare, OfAnotherMachineIsNotMeasured) {
  const std::string unused = UnusedPath("described");
  ResolvedRun run = UpToTheShare(Tiny(unused, "auto"));
  run.place.described = "a machine";
  try {
    Choose(run);
    ADD_FAILURE() << "measured";
  } catch (const ConfigError& error) {
    EXPECT_NE(
        std::string(error.what()).find("`auto` is measured, and a machine is another machine"),
        std::string::npos)
        << error.what();
  }
  // The run there has found one.
  ASSERT_EQ(Train({Tiny(unused, "0.25")}, {}), Strings{"0 "});
  EXPECT_NE(Choose(run).find(": 0.25, which the run goes on with"), std::string::npos);
}

// Who evaluates updates nothing.
TEST(AutomaticShare, IsNoneOfWhoEvaluates) {
  ResolvedRun run = UpToTheShare(Tiny(UnusedPath("evaluates"), "auto"));
  run.place.trains = false;
  EXPECT_EQ(Choose(run), "");
  EXPECT_FALSE(run.recipe.fsdp.cpu_offload.optimizer_share.has_value());
}

}  // namespace
}  // namespace fsdp
