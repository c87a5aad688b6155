// One recipe, by all who ask for its run: what they are handed is the same.
#include "trainer/loop/resolved_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/process_limits.h"
#include "trainer/loop/choice.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/train.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

Recipe Tiny(const Strings& more = {}) {
  Strings overrides = {"run.dir=" + UnusedPath("run")};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return ParseRecipe(
      {
          {"tiny",
           "run: {threads: 2, timeout_s: 60}\n"
           "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 4,\n"
           "        num_attention_heads: 2, vocab_size: 256,\n"
           "        max_position_embeddings: 16}\n"
           "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
           "train: {steps: 1, micro_batch_size: 2, global_batch_size: 8}\n"
           "checkpoint: {every: 1}\n"},
      },
      overrides);
}

// Text of 1000 bytes, as tokens.
Strings Text() {
  const std::string file = FreshDirectory("text") + "/text.txt";
  WriteAtomicFile(file, std::string(1000, 'x'));
  return {"data.train={source: text, paths: [" + file + "], tokenizer: bytes}"};
}

// By rank, of ranks that are threads on two hosts. `change` makes a rank's job another one.
std::vector<ResolvedRun> ForTraining(const std::vector<Recipe>& recipes,
                                     const std::function<void(Job&)>& change = nullptr) {
  std::vector<ResolvedRun> runs(recipes.size());
  const int world = static_cast<int>(recipes.size());
  const auto resolve = [&](testing::Rank& rank) -> std::string {
    Job job;
    job.rank = rank.rank;
    job.world = world;
    job.local_world = (world + 1) / 2;
    job.store = rank.store;
    job.find_hosts = [&] { return HostPlacement::InOrder(world, job.local_world); };
    if (change) change(job);
    ResolvedRun run = Resolve(recipes[static_cast<size_t>(rank.rank)], PlaceToTrain(job));
    run.place.job = nullptr;  // It is gone.
    runs[static_cast<size_t>(rank.rank)] = std::move(run);
    return "";
  };
  for (const testing::Outcome& outcome : testing::RunThreadRanks(world, resolve)) {
    EXPECT_EQ(outcome.error, "");
  }
  return runs;
}

ResolvedRun ForADryRun(const Recipe& recipe, int world) {
  return Resolve(recipe, PlaceOfDryRun(recipe, /*rank=*/0, world, (world + 1) / 2, ChosenDevice()));
}

ResolvedRun ToPlan(const Recipe& recipe, int world,
                   const std::optional<Hardware>& hardware = std::nullopt) {
  return Resolve(recipe, PlaceToPlan(recipe, world, (world + 1) / 2, hardware));
}

void ExpectSame(const ResolvedRun& run, const ResolvedRun& other) {
  EXPECT_EQ(PrintRecipe(*run.recipe), PrintRecipe(*other.recipe));
  EXPECT_EQ(run.shape, other.shape);
  EXPECT_EQ(run.threads, other.threads);
  EXPECT_EQ(run.hosts.ByHost(), other.hosts.ByHost());
  EXPECT_EQ(run.mesh.shard_size(), other.mesh.shard_size());
  EXPECT_EQ(run.target.device, other.target.device);
  const SessionOptions &a = run.options, &b = other.options;
  EXPECT_TRUE(static_cast<const FsdpOptions&>(a.executor) == b.executor);
  EXPECT_EQ(a.executor.attention, b.executor.attention);
  EXPECT_EQ(a.executor.recompute, b.executor.recompute);
  EXPECT_EQ(a.executor.micro_batches, b.executor.micro_batches);
  EXPECT_EQ(a.executor.threads, b.executor.threads);
  EXPECT_EQ(a.lr.steps, b.lr.steps);
  EXPECT_EQ(a.lr.At(1), b.lr.At(1));
  EXPECT_EQ(a.snapshot, b.snapshot);
  EXPECT_EQ(run.plan.schedule_hash, other.plan.schedule_hash);
  EXPECT_EQ(run.plan.planned(), other.plan.planned());
  EXPECT_EQ(run.plan.memory.bytes(), other.plan.memory.bytes());
  EXPECT_EQ(run.plan.traffic.all_gather_bytes, other.plan.traffic.all_gather_bytes);
  EXPECT_EQ(run.plan.traffic.reduce_scatter_bytes, other.plan.traffic.reduce_scatter_bytes);
}

TEST(ResolvedRun, IsTheSameWhoeverAsks) {
  for (const Strings& settings : std::vector<Strings>{
           {},
           {"fsdp.sharding_strategy=hybrid_shard", "train.activation_checkpointing=full"},
           {"fsdp.cpu_offload={optimizer: true, optimizer_share: 0.5}", "checkpoint.async=true"},
           {"fsdp={buffers: caching, limiter: host}"},
           {"model.attention_dropout=0.5", "run.threads=1", "schedule.name=wsd"},
           {"train.attention=math", "run.deterministic=true"},
           {"fsdp.quantize={reduce: int4, min_size: 1}"},
       }) {
    SCOPED_TRACE(settings.empty() ? "" : settings[0]);
    const Recipe recipe = Tiny(settings);
    const std::vector<ResolvedRun> trained = ForTraining({recipe, recipe, recipe, recipe});
    for (const ResolvedRun& rank : trained) ExpectSame(rank, trained[0]);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(trained[static_cast<size_t>(r)].mesh.world_rank(), r);
    const ResolvedRun dry = ForADryRun(recipe, 4), planned = ToPlan(recipe, 4);
    ExpectSame(dry, trained[0]);
    ExpectSame(planned, trained[0]);
    EXPECT_TRUE(dry.data && trained[0].data);
    EXPECT_FALSE(planned.data);
  }
}

Strings SaidOf(const ResolvedRun& run) {
  return WhatIsQuantized(*run.recipe, *run.model, run.options, run.hosts);
}

// Hosts with two ranks each, or with two and one.
// A launcher that gives each rank cores of its own has divided them already.
TEST(ResolvedRun, SharesCoresWithThoseWhoMayRunOnThem) {
  const int cores = AvailableCores(), quota = MemoryLimits().Cores().value_or(2 * cores);
  const std::vector<Recipe> recipes(4, Tiny({"run.threads=0"}));
  for (const int ranks : {1, 2}) {
    for (const ResolvedRun& run : ForTraining(
             recipes, [&](Job& job) { job.find_ranks_on_cores = [ranks] { return ranks; }; })) {
      EXPECT_EQ(run.threads, std::max(1, std::min(cores / ranks, quota / 2)));
      EXPECT_EQ(run.ranks_on_cores, ranks);
    }
  }
  EXPECT_EQ(ForTraining(recipes)[0].ranks_on_cores, 2);
}

TEST(ResolvedRun, SaysInWhichHopsGradientsAreSummed) {
  const auto said = [](const ResolvedRun& run) {
    const Strings lines = SaidOf(run);
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? "" : lines[0];
  };
  EXPECT_EQ(SaidOf(ToPlan(Tiny(), 4)), Strings());
  const Recipe recipe = Tiny({"fsdp.quantize={reduce: int4, min_size: 256}"});
  const ResolvedRun two = ToPlan(recipe, 4);
  EXPECT_EQ(two.mesh.SizeOf(Group::kAcross), 2);
  EXPECT_EQ(said(two),
            "gradients, quantised, are summed in two hops: over 2 ranks of each host, then over 2 "
            "hosts");
  const std::vector<ResolvedRun> unequal = ForTraining({recipe, recipe, recipe});
  EXPECT_EQ(unequal[0].mesh.SizeOf(Group::kInside), 3);
  EXPECT_EQ(said(unequal[0]),
            "gradients, quantised, are summed in one hop: the ranks that share a copy are "
            "unequally many on their hosts");
  const std::string one_hop = "gradients, quantised, are summed in one hop, over 2 ranks";
  EXPECT_EQ(said(ToPlan(recipe, 2)), one_hop);
  const Recipe copies =
      Tiny({"fsdp={sharding_strategy: hybrid_shard, quantize: {reduce: int4, min_size: 256}}"});
  EXPECT_EQ(said(ToPlan(copies, 4)), one_hop);
  EXPECT_EQ(said(ToPlan(copies, 2)),
            "gradients: each rank has a copy of its own, so nothing is quantised");
}

TEST(ResolvedRun, SaysWhatIsQuantizedInVain) {
  const auto said = [](const Strings& settings, int world = 2) {
    return SaidOf(ToPlan(Tiny(settings), world));
  };
  const Strings one_hop = {"gradients, quantised, are summed in one hop, over 2 ranks"};
  const std::string size = "8192", more = "8193";  // The table's, and one more.
  EXPECT_EQ(said({"fsdp.quantize={gather: int8, reduce: int4, min_size: " + size + "}"}), one_hop);
  const std::string both = "fsdp.quantize={gather: int8, reduce: int4, min_size: " + more + "}";
  EXPECT_EQ(said({both}),
            (Strings{"--set " + both + ": fsdp.quantize.min_size: gathers: nothing is quantised, " +
                         "because no matrix outside keep_fp32 has " + more +
                         " elements; the largest has " + size,
                     "--set " + both + ": fsdp.quantize.min_size: gradients: nothing is " +
                         "quantised, because no matrix that trains outside keep_fp32 has " + more +
                         " elements; the largest has " + size}));
  EXPECT_EQ(said({both}, 1), Strings());  // Advice() says that one rank quantises nothing.
  // keep_fp32 has all of them; the key has its default.
  const Strings none = {"fsdp.quantize.gather=fp8", "fsdp.mixed_precision.keep_fp32=['*']"};
  EXPECT_EQ(said(none),
            Strings{"fsdp.quantize.min_size: gathers: nothing is quantised, because no matrix "
                    "outside keep_fp32 has 65536 elements"});
  // A frozen table has no gradients to quantise.
  const std::string table = "fsdp.quantize={gather: int8, reduce: int8, min_size: " + size + "}";
  EXPECT_EQ(said({table, "optimizer.groups=[{match: '*wte*', frozen: true}]"}),
            Strings{"--set " + table + ": fsdp.quantize.min_size: gradients: nothing is " +
                    "quantised, because no matrix that trains outside keep_fp32 has " + size +
                    " elements; the largest has 4096"});
  EXPECT_EQ(said({"fsdp={sharding_strategy: hybrid_shard, quantize: {gather: int8}}"}),
            Strings{"gathers: each rank has a copy of its own, so nothing is quantised"});
}

// The wrapping of the FSDP paper's DeepViT: two units of each of 952 layers.
TEST(ResolvedRun, SplitsBranches) {
  const Recipe recipe = ParseRecipe({{"deep",
                                      "run: {threads: 1}\n"
                                      "model: {preset: deepvit-8b}\n"
                                      "data: {train: {source: synthetic}}\n"
                                      "fsdp: {auto_wrap: {policy: branch}}\n"}},
                                    {});
  const auto blocks = [](const Recipe& of) {
    const ModelShape shape = ShapeFor(of);
    const std::shared_ptr<Model> model = BuildModel(of, shape);
    return std::count_if(model->segments().begin(), model->segments().end(),
                         [](const ModelSegment& segment) { return segment.is_block; });
  };
  EXPECT_EQ(blocks(recipe), 1904);
  Recipe layers = recipe;
  layers.fsdp.auto_wrap.policy = AutoWrap::kTransformerBlock;
  EXPECT_EQ(blocks(layers), 952);
}

// How many steps epochs are only who opens the data knows.
TEST(ResolvedRun, HasTheStepsOfItsData) {
  Strings settings = Text();
  settings.insert(settings.end(), {"train={steps: null, epochs: 3}", "schedule.name=linear"});
  const Recipe recipe = Tiny(settings);
  const std::vector<ResolvedRun> trained = ForTraining({recipe, recipe});
  const double rows = std::floor((1000 - 1) / 16.0);  // A target behind each token.
  const auto steps = static_cast<int64_t>(std::ceil(3 * rows / 8));
  EXPECT_EQ(trained[0].recipe->train.steps, steps);
  EXPECT_FALSE(trained[0].recipe->train.epochs);
  EXPECT_EQ(trained[0].options.lr.steps, steps);
  ExpectSame(trained[1], trained[0]);
  ExpectSame(ForADryRun(recipe, 2), trained[0]);
  EXPECT_EQ(trained[0].recipe->notes.size(), 1u);
  const ResolvedRun planned = ToPlan(recipe, 2);
  EXPECT_EQ(planned.recipe->train.epochs, 3);
  EXPECT_EQ(planned.plan.planned(), trained[0].plan.planned());
}

// A run that goes on keeps dropouts that nobody has given, whoever asks.
TEST(ResolvedRun, GoesOnWithWhatTheRunHas) {
  const auto train = [](const Recipe& recipe) {
    MemoryStore store(60);
    Job job;
    job.store = &store;
    EXPECT_EQ(TrainRank(recipe, job), ExitCode::kDone);
  };
  const std::string weights = UnusedPath("weights"), run = UnusedPath("goes_on");
  train(Tiny({"run.dir=" + weights}));
  const Strings from = {"run.dir=" + run,
                        "model={hidden_size: null, num_hidden_layers: null, "
                        "num_attention_heads: null, vocab_size: null, "
                        "max_position_embeddings: null, init_from: " +
                            weights + "/checkpoints/step_1}"};
  Strings dropped = from;
  dropped.push_back("model.attention_dropout=0.125");
  train(Tiny(dropped));
  const Recipe recipe = Tiny(from);
  const std::vector<ResolvedRun> trained = ForTraining({recipe, recipe});
  EXPECT_EQ(trained[0].recipe->model.Get<double>("attention_dropout"), 0.125);
  ExpectSame(trained[1], trained[0]);
  ExpectSame(ForADryRun(recipe, 2), trained[0]);
  ExpectSame(ToPlan(recipe, 2), trained[0]);
}

TEST(ResolvedRun, HasNothingToTrainWhereItEvaluates) {
  const Recipe recipe = Tiny();
  Job job;
  const ResolvedRun run = Resolve(recipe, PlaceToEvaluate(job, /*silent=*/true));
  EXPECT_FALSE(run.options.train);
  for (const ModelSegment& segment : run.model->segments()) {
    for (const Parameter* p : segment.parameters) EXPECT_FALSE(p->trainable()) << p->name();
  }
  EXPECT_EQ(run.plan.bytes(MemoryKind::kGradients), 0);
  constexpr int64_t kScalars = 256;  // At most, of a step.
  EXPECT_LT(run.plan.bytes(MemoryKind::kOptimizer), kScalars);
  EXPECT_GT(ToPlan(recipe, 1).plan.bytes(MemoryKind::kOptimizer), 100 * kScalars);
}

// A machine that a file describes is not asked. Its own memory is what a plan is held against.
TEST(ResolvedRun, OfADescribedMachineAsksNothingHere) {
  Hardware machine;
  machine.name = "a GPU";
  machine.memory = int64_t{16} << 30;
  machine.host_memory = int64_t{8} << 30;
  const Recipe recipe = Tiny();
  const ResolvedRun planned = ToPlan(recipe, 4, machine);
  EXPECT_EQ(planned.target.device, DeviceType::kCuda);
  EXPECT_EQ(planned.options.executor.attention, AttentionBackend::kCudnn);
  EXPECT_EQ(planned.Of(ChoiceId::kAttention).value, "");
  EXPECT_LT(planned.plan.device_available->bytes, machine.memory);
  EXPECT_EQ(planned.plan.available->bytes, int64_t{4} << 30);  // Two ranks to a host.
  const ResolvedRun bench = Resolve(recipe, PlaceToBench(4, machine));
  EXPECT_EQ(bench.threads, 1);
  EXPECT_EQ(bench.target.device, DeviceType::kCuda);
  EXPECT_EQ(bench.plan.schedule_hash, planned.plan.schedule_hash);
  EXPECT_EQ(bench.plan.planned(), planned.plan.planned());
}

TEST(ResolvedRun, NamesWhatRanksCompare) {
  const std::vector<ResolvedRun> trained = ForTraining({Tiny(), Tiny()});
  Strings names;
  for (const auto& [name, value] : LabelsOf(trained[0])) {
    if (!name.starts_with("recipe: ")) names.push_back(name);
  }
  EXPECT_EQ(names, (Strings{"schedule", "build", "device", "kernels", "cuBLASLt", "NCCL",
                            "attention", "data"}));
  EXPECT_EQ(LabelsOf(trained[0]), LabelsOf(trained[1]));
  EXPECT_TRUE(LabelsOf(trained[0])[0].first.starts_with("recipe: "));
}

// One sample whose last images have one pixel is one value a channel: refused where it is planned.
TEST(BatchNorms, WantMoreThanOneValue) {
  const auto recipe = [](const Strings& more) {
    Strings overrides = {"run.dir=" + UnusedPath("run")};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return ParseRecipe({{"images",
                         "model: {family: regnet, image_size: 8, hidden_sizes: [8, 16],\n"
                         "        depths: [1, 1]}\n"
                         "data: {train: {source: synthetic}, valid: null}\n"
                         "train: {steps: 1, micro_batch_size: 1, global_batch_size: 2}\n"}},
                       overrides);
  };
  try {
    ForADryRun(recipe({}), 2);
    ADD_FAILURE() << "was not refused";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("train.micro_batch_size"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("a batch norm would be over one value"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(ForADryRun(recipe({"train.batch_norm=sync"}), 1), ConfigError);
  EXPECT_NO_THROW(ForADryRun(recipe({"train.batch_norm=sync"}), 2));
  EXPECT_NO_THROW(ForADryRun(recipe({"train.micro_batch_size=2"}), 2));
  EXPECT_NO_THROW(ForADryRun(recipe({"model.image_size=9"}), 2));
}

}  // namespace
}  // namespace fsdp
