// The training loop of every rank, in processes of their own.
#include "trainer/loop/train.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "tests/testing/everything.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/comm/ranks.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

Recipe Tiny(const std::string& directory, const Strings& more = {}) {
  Strings overrides = {"run.dir=" + directory};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return ParseRecipe({{"tiny",
                       "run: {threads: 1, timeout_s: 60}\n"
                       "model: {family: gpt2, hidden_size: 16, num_hidden_layers: 2,\n"
                       "        num_attention_heads: 2, vocab_size: 64,\n"
                       "        max_position_embeddings: 16}\n"
                       "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
                       "train: {steps: 12, micro_batch_size: 2, global_batch_size: 5}\n"
                       "optimizer: {lr: 1.0e-2}\n"}},
                     overrides);
}

// The exit code of each rank and what it said, "0 " where it is done. All uses of memory are
// checked, the host's and the saver's, too.
Strings Train(int world, const Recipe& recipe, const std::function<void(Job&)>& change = {}) {
  Strings ends;
  for (const testing::Outcome& outcome :
       testing::RunProcessRanks(world, [&](testing::Rank& rank) -> std::string {
         Job job;
         job.rank = rank.rank;
         job.world = rank.size;
         job.local_world = rank.size;
         job.store = rank.store;
         job.checker = std::make_shared<StreamChecker>();  // A race ends the rank.
         job.connect = [&](const std::string& name, const RankGroup& group) {
           return rank.join_group(name, group, {.timeout_s = recipe.run.timeout_s});
         };
         if (change) change(job);
         try {
           return std::to_string(static_cast<int>(TrainRank(recipe, job))) + " ";
         } catch (const Error& error) {
           return std::to_string(static_cast<int>(error.code())) + " " + error.what();
         }
       })) {
    ends.push_back(outcome.error.empty() ? outcome.result : outcome.error);
  }
  return ends;
}

std::vector<testing::Json> Records(const std::string& run, const std::string& kind) {
  std::vector<testing::Json> records;
  std::istringstream in(ReadWholeFile(run + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    auto record = testing::Json::parse(line);
    if (record["kind"] == kind) records.push_back(record);
  }
  return records;
}

TEST(SavingTest, InTheBackgroundGivesTheSameFiles) {
  size_t i = 0;
  for (const int world : {1, 3}) {
    ++i;
    for (const char* strategy : {"full_shard", "no_shard"}) {
      if (testing::OfAnotherPart(i++, 2)) continue;
      std::map<std::string, std::string> files[2];
      Strings losses[2];
      for (const int async : {0, 1}) {
        const std::string run = UnusedPath("same");
        const Recipe recipe =
            Tiny(run, {std::string("fsdp.sharding_strategy=") + strategy,
                       std::string("checkpoint={every: 2, keep_last: 0, async: ") +
                           (async ? "true" : "false") + "}"});
        EXPECT_EQ(Train(world, recipe), Strings(world, "0 "));
        files[async] = testing::CheckpointFiles(run);
        for (const auto& r : Records(run, "step")) losses[async].push_back(r["loss"].dump());
        // Each is recorded once, in order, none before its step was.
        const auto saved = Records(run, "checkpoint");
        ASSERT_EQ(saved.size(), 6u);
        for (size_t i = 0; i < saved.size(); ++i) EXPECT_EQ(saved[i]["step"], 2 * (i + 1));
      }
      EXPECT_EQ(files[0].size(), 6u * static_cast<size_t>(world) + 1);
      EXPECT_TRUE(files[0] == files[1]) << world << " " << strategy;
      EXPECT_EQ(losses[0].size(), 12u);
      EXPECT_EQ(losses[0], losses[1]);
    }
  }
}

// A save in the background that fails ends the run on every rank as one in the foreground does: by
// CheckpointError, whichever rank sees it first, and with the checkpoints of before.
TEST(SavingTest, AFailureIsEveryRanksCheckpointError) {
  constexpr int kWorld = 3;
  for (const bool async : {false, true}) {
    for (int i = 0; i < 6; ++i) {
      if (testing::OfAnotherPart(i + (async ? 1 : 0), 2)) continue;
      // The last save is at step 12, in the foreground; that of step 10 may be found out by it.
      const int step = 2 + 2 * i;
      const std::string run = UnusedPath("failure");
      const Recipe recipe = Tiny(run, {std::string("checkpoint={every: 2, keep_last: 0, async: ") +
                                       (async ? "true" : "false") + "}"});
      fs::create_directories(run + "/checkpoints");
      // No directory can be made there, and it is not ours to remove.
      std::ofstream(run + "/checkpoints/step_" + std::to_string(step) + ".tmp") << "in the way";
      for (const std::string& end : Train(kWorld, recipe)) {
        EXPECT_EQ(end.substr(0, 2), "5 ") << end;
        EXPECT_NE(end.find("the checkpoint was not saved: rank "), std::string::npos) << end;
        EXPECT_NE(end.find("Not a directory"), std::string::npos) << end;
      }
      const auto records = Records(run, "end");
      ASSERT_EQ(records.size(), 1u);
      EXPECT_NE(records[0]["reason"].get<std::string>().find("was not saved"), std::string::npos);
      EXPECT_EQ(fs::exists(run + "/checkpoints/step_" + std::to_string(step)), false);
      EXPECT_EQ(fs::exists(run + "/checkpoints/step_" + std::to_string(step + 2)), false);
      if (step > 2) {
        EXPECT_EQ(ReadWholeFile(run + "/checkpoints/latest"), "step_" + std::to_string(step - 2));
      }
      EXPECT_EQ(Records(run, "checkpoint").size(), static_cast<size_t>(step / 2 - 1));
    }
  }
}

// All elements of a state, parameter after parameter.
std::vector<float> StateOf(const std::string& checkpoint, const std::string& state) {
  CheckpointReader reader(checkpoint);
  std::vector<float> all;
  for (const FlatParameter& unit : reader.manifest().flat_parameters) {
    for (const Placement& p : unit.parameters) {
      std::vector<float> values(static_cast<size_t>(p.size()));
      reader.Read(state, p.name, p.shape, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

// The checkpoint `from` with one element changed, as `to`.
void CopyWith(const std::string& from, const std::string& to, const std::string& state,
              const std::string& parameter, int64_t element, float value) {
  CheckpointReader reader(from);
  const Manifest& manifest = reader.manifest();
  WriteCheckpoint(
      to, {manifest.meta, Relayout(manifest.flat_parameters, 1), 1, manifest.StateNames()},
      [&](const std::string& s, const Placement& p, int64_t begin, std::span<float> out) {
        reader.Read(s, p.name, p.shape, begin, out);
        const int64_t at = element - begin;
        if (s == state && p.name == parameter && at >= 0 && at < static_cast<int64_t>(out.size())) {
          out[static_cast<size_t>(at)] = value;
        }
      },
      nullptr);
}

bool AllFinite(const std::string& checkpoint) {
  for (const char* state : {"master", "m", "v"}) {
    for (const float v : StateOf(checkpoint, state)) {
      if (!std::isfinite(v)) return false;
    }
  }
  return true;
}

// The end of all ranks of a run that must fail: `code`, and all these words from each of them.
void ExpectEnd(const Strings& ends, const std::string& code, const Strings& words) {
  for (const std::string& end : ends) {
    EXPECT_EQ(end.substr(0, 2), code + " ") << end;
    for (const std::string& word : words) EXPECT_NE(end.find(word), std::string::npos) << end;
  }
}

// AdamW whose decay multiplies each matrix by -1e10 a step: the loss of the step is a number, what
// it leaves behind is not.
const char* const kOverflow = "optimizer={name: adamw, lr: 1.0e+30, weight_decay: 1.0e+20}";

TEST(NotFiniteTest, IsNeverSaved) {
  for (const int world : {1, 3}) {
    for (const char* async : {"true", "false"}) {
      const std::string run = UnusedPath("overflow");
      const std::string saving = std::string("checkpoint={every: 1, keep_last: 1, async: ") + async;
      EXPECT_EQ(Train(world, Tiny(run, {"train.steps=2", saving + "}", "optimizer.lr=0"})),
                Strings(world, "0 "));
      // In one update; the last step's as well as one with others behind it.
      for (const char* steps : {"1", "5"}) {
        const std::string other = UnusedPath("overflows");
        ExpectEnd(
            Train(world,
                  Tiny(other, {std::string("train.steps=") + steps, kOverflow, saving + "}"})),
            "7",
            {"the checkpoint was not saved: rank ", "not finite after step 1", "optimizer.lr"});
        EXPECT_FALSE(fs::exists(other + "/checkpoints/latest"));
        EXPECT_FALSE(fs::exists(other + "/checkpoints/step_1"));
        EXPECT_EQ(Records(other, "checkpoint").size(), 0u);
        ASSERT_EQ(Records(other, "end").size(), 1u);
        EXPECT_NE(Records(other, "end")[0]["reason"].get<std::string>().find("not finite"),
                  std::string::npos);
      }
    }
  }
}

// The host enqueues two steps ahead, so what it has taken when a record is written is of later
// ones, or of none. All steps do the same, which is what is planned.
TEST(RecordTest, PeaksOfACachingAllocatorAreOfTheirOwnStep) {
  for (const int world : {1, 2}) {
    for (const char* every : {"1", "5"}) {
      const std::string run = UnusedPath("peaks");
      const Recipe recipe =
          Tiny(run, {"fsdp={buffers: caching, limiter: host}", std::string("log.every=") + every,
                     "checkpoint={every: 4, async: false}"});
      const SessionOptions options =
          SessionOptionsFor(recipe, HostPlacement::InOrder(world, world), 1);
      const MemoryPlan plan = PlanMemory(*BuildModel(recipe, ShapeFor(recipe)), options, world);
      EXPECT_EQ(Train(world, recipe), Strings(world, "0 "));
      const auto steps = Records(run, "step");
      ASSERT_EQ(steps.size(), every == std::string("1") ? 12u : 3u);
      for (const auto& step : steps) {
        const auto& memory = step["memory"];
        EXPECT_EQ(memory["allocated_peak"], plan.caching->allocated.peak) << step;
        EXPECT_LE(memory["allocated_peak"], memory["active_peak"]);
        EXPECT_LE(memory["active_peak"], memory["reserved_peak"]);
      }
    }
  }
}

constexpr char kHalf[] =
    "fsdp.mixed_precision={param_dtype: fp16, grad_dtype: fp16, reduce_dtype: fp16, "
    "scaler: {init_scale: 1.0e+18, min_scale: ";

// Each halves the scale, and a run is there to the end; all but those at the floor are free.
TEST(NotFiniteTest, OverflowsOfFp16AreFreeAboveTheFloor) {
  for (const int world : {1, 3}) {
    const std::string run = UnusedPath("overflow_fp16");
    EXPECT_EQ(
        Train(world, Tiny(run, {"train.steps=60", "log.every=1", std::string(kHalf) + "1}}"})),
        Strings(world, "0 "));
    const auto skipped = Records(run, "skipped"), steps = Records(run, "step");
    ASSERT_EQ(steps.size(), 60u);
    ASSERT_GT(skipped.size(), 20u);
    ASSERT_LT(skipped.size(), 60u);
    for (size_t i = 0; i < 20; ++i) {  // Between later ones there may be good steps.
      EXPECT_EQ(skipped[i]["step"], i + 1);
      const int first = world == 3 ? 1 : 0;  // Twice init_scale.
      EXPECT_EQ(skipped[i]["loss_scale"],
                std::ldexp(static_cast<double>(1.0e+18f), first - int(i)));
      EXPECT_TRUE(steps[i]["grad_norm"].is_null());
      EXPECT_TRUE(steps[i]["loss"].is_number());  // Unscaled, and that of the first weights.
    }
    EXPECT_TRUE(steps.back()["grad_norm"].is_number());
    EXPECT_EQ(steps.back()["loss_scale"], skipped.back()["loss_scale"].get<double>() / 2);
  }
}

TEST(NotFiniteTest, TheOthersAreCountedOverTheRun) {
  for (const int world : {1, 3}) {
    const std::string run = UnusedPath("paid");
    const auto until = [&](int steps, const char* most) {
      return Train(
          world,
          Tiny(run,
               {"train={steps: " + std::to_string(steps) + ", max_skipped_steps: " + most + "}",
                "checkpoint={every: 1, keep_last: 0}", std::string(kHalf) + "1.0e+18}}"}));
    };
    const int free = world == 3 ? 1 : 0;  // Three ranks begin above the floor.
    EXPECT_EQ(until(2 + free, "3"), Strings(world, "0 "));
    ExpectEnd(
        until(9, "3"), "7",
        {"step " + std::to_string(4 + free) + ": loss ",
         ": not finite, as were 3 before it, and train.max_skipped_steps is 3. The step changed "
         "no parameter"});
    EXPECT_EQ(Records(run, "skipped").size(), 4u + free);
    // Nothing of the step that was one too many, or of what was in the air behind it.
    EXPECT_EQ(*FindLatestCheckpoint(run + "/checkpoints"),
              run + "/checkpoints/step_" + std::to_string(3 + free));
    ExpectEnd(until(9, "1"), "7", {"as were 3 before it, and train.max_skipped_steps is 1"});
  }
}

// Whatever the number of ranks that go on.
TEST(LossScaleTest, AResumeKeepsTheCheckpoints) {
  const std::string run = UnusedPath("scale_of_a_checkpoint");
  const auto until = [&](int world, int steps) {
    return Train(world, Tiny(run, {"train.steps=" + std::to_string(steps), "log.every=1",
                                   "checkpoint.every=1",
                                   "fsdp.mixed_precision={param_dtype: fp16, scaler: "
                                   "{init_scale: 8, growth_interval: 1000}}"}));
  };
  EXPECT_EQ(until(4, 1), Strings(4, "0 "));
  EXPECT_EQ(until(1, 2), Strings(1, "0 "));
  EXPECT_EQ(until(2, 3), Strings(2, "0 "));
  const auto steps = Records(run, "step");
  ASSERT_EQ(steps.size(), 3u);
  for (const auto& step : steps) EXPECT_EQ(step["loss_scale"], 32) << step;
}

TEST(NotFiniteTest, IsSaidWithoutACheckpoint) {
  for (const int world : {1, 3}) {
    ExpectEnd(Train(world, Tiny(UnusedPath("unsaved"),
                                {"train.steps=1", "checkpoint.every=null", kOverflow})),
              "7", {"after step 1: ", "not finite", "optimizer.lr"});
  }
}

// Rates and decays of any size, so that runs overflow at any step, in the loss or behind it: what
// is in force is finite, whatever the moment.
TEST(NotFiniteTest, LeavesAFiniteCheckpointAtAnyMoment) {
  constexpr int kSeed = 31337, kRuns = 40;
  std::printf("seed %d\n", kSeed);
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> uniform;
  int finished = 0, unsaved = 0, kept = 0;
  for (int i = 0; i < kRuns; ++i) {
    const std::string run = UnusedPath("any_moment");
    const int world = 1 + static_cast<int>(random() % 3);
    char settings[200];
    std::snprintf(settings, sizeof(settings), "optimizer={name: %s, lr: %.3e, weight_decay: %.3e}",
                  random() % 2 ? "adamw" : "sgd", std::pow(10, 38 * uniform(random)),
                  std::pow(10, 12 * uniform(random)));
    const uint64_t steps = 1 + random() % 6, warmup = random() % std::min<uint64_t>(steps, 4);
    const Strings more = {settings, "train={steps: " + std::to_string(steps) + ", grad_clip: 0}",
                          "schedule={name: cosine, warmup_steps: " + std::to_string(warmup) + "}",
                          std::string("checkpoint={every: 1, keep_last: 1, async: ") +
                              (random() % 2 ? "true}" : "false}")};
    const Strings ends = Train(world, Tiny(run, more));
    const std::string what = ::testing::PrintToString(more) + ::testing::PrintToString(ends);
    for (const std::string& end : ends) EXPECT_EQ(end.substr(0, 2), ends[0].substr(0, 2)) << what;
    EXPECT_TRUE(ends[0] == "0 " || ends[0].starts_with("7 ")) << what;
    finished += ends[0] == "0 ";
    unsaved += ends[0].find("was not saved") != std::string::npos;
    const auto latest = FindLatestCheckpoint(run + "/checkpoints");
    if (!latest) continue;
    ++kept;
    CheckpointReader reader(*latest);
    for (const std::string& state : reader.manifest().StateNames()) {
      for (const float v : StateOf(*latest, state)) ASSERT_TRUE(std::isfinite(v)) << what;
    }
  }
  std::printf("%d runs: %d finished, %d saves refused, %d left a checkpoint\n", kRuns, finished,
              unsaved, kept);
  EXPECT_GT(unsaved, 5);
  EXPECT_GT(kept, 5);
}

TEST(NotFiniteTest, NoRunStartsFromIt) {
  const std::string start = UnusedPath("finite");
  ASSERT_EQ(Train(1, Tiny(start, {"train.steps=4", "checkpoint={every: 2, keep_last: 0}"}))[0],
            "0 ");
  const std::string at = start + "/checkpoints/step_4", spoilt = UnusedPath("spoilt");
  ASSERT_TRUE(AllFinite(at));
  CopyWith(at, spoilt, "master", "transformer.h.1.mlp.c_fc.weight", 5, INFINITY);
  for (const int world : {1, 3}) {
    const std::string run = UnusedPath("from");
    ExpectEnd(Train(world, Tiny(run, {"model={init_from: " + spoilt + "}"})), "5",
              {"model.init_from: " + spoilt, "h.1.mlp.c_fc.weight: element 5 is inf"});
    EXPECT_FALSE(fs::exists(run + "/metrics.jsonl"));
  }
  // A checkpoint to resume from, whose checksums are right.
  fs::remove_all(at);
  const std::string aside = UnusedPath("aside");
  ASSERT_EQ(
      Train(1, Tiny(start, {"train.steps=4", "checkpoint={every: 2, keep_last: 0, resume: 2}"}))[0],
      "0 ");
  fs::rename(at, aside);
  CopyWith(aside, at, "v", "transformer.h.0.ln_1.bias", 3, -NAN);
  for (const int world : {1, 3}) {
    ExpectEnd(Train(world, Tiny(start, {"checkpoint.every=2"})), "5",
              {at + ": v of transformer.h.0.ln_1.bias: element 3 is nan", "(complete: 2)"});
  }
}

// Damage that only the ranks find out that read it: all say the same, and how to go on.
TEST(ResumeTest, ADamagedChunkIsEverybodysError) {
  constexpr int kWorld = 3;
  const std::string run = UnusedPath("chunk");
  const auto recipe = [&](const Strings& more) {
    Strings all = {"checkpoint.every=4", "checkpoint.keep_last=0"};
    all.insert(all.end(), more.begin(), more.end());
    return Tiny(run, all);
  };
  ASSERT_EQ(Train(kWorld, recipe({})), Strings(kWorld, "0 "));
  const std::string file = run + "/checkpoints/step_12/rank_2.safetensors";
  std::string bytes = ReadWholeFile(file);
  bytes[bytes.size() / 2] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  ExpectEnd(
      Train(kWorld, recipe({"train.steps=14"})), "5",
      {file, "is damaged: bytes 0 to ", "set checkpoint.resume to its step (complete: 4, 8)"});
  EXPECT_TRUE(fs::exists(run + "/checkpoints/step_12"));
  // Nothing is set aside before the older one has been read.
  ASSERT_EQ(Train(kWorld, recipe({"train.steps=14", "checkpoint.resume=8"})),
            Strings(kWorld, "0 "));
  EXPECT_TRUE(fs::exists(run + "/checkpoints/step_12.aside/rank_2.safetensors"));
  EXPECT_EQ(ReadWholeFile(run + "/checkpoints/latest"), "step_14");
  EXPECT_TRUE(AllFinite(run + "/checkpoints/step_12"));
  EXPECT_EQ(Records(run, "resume").size(), 1u);
}

// By step, by name, by path, by the run's directory: what is meant, and later ones of this run's
// own are set aside.
TEST(ResumeTest, TakesWhatIsMeant) {
  const std::string first = UnusedPath("first"), second = UnusedPath("second");
  const Strings settings = {"train.steps=8", "checkpoint={every: 2, keep_last: 0}"};
  ASSERT_EQ(Train(2, Tiny(first, settings)), Strings(2, "0 "));
  const auto go_on = [&](const std::string& run, const std::string& from) {
    Strings all = settings;
    all.push_back("checkpoint.resume=" + from);
    return Train(2, Tiny(run, all));
  };
  const auto resumed = [&](const std::string& run) {
    return Records(run, "resume").back()["from"].get<std::string>();
  };
  const std::string own = first + "/checkpoints/";
  EXPECT_EQ(go_on(first, "step_4"), Strings(2, "0 "));
  EXPECT_EQ(resumed(first), own + "step_4");
  for (const char* name : {"step_6.aside", "step_8.aside", "step_6", "step_8"}) {
    EXPECT_TRUE(fs::exists(own + name)) << name;
  }
  EXPECT_EQ(go_on(first, own + "step_6"), Strings(2, "0 "));
  EXPECT_TRUE(fs::exists(own + "step_8.aside.2"));
  EXPECT_EQ(go_on(first, first), Strings(2, "0 "));  // Its newest: nothing is left to do.
  EXPECT_EQ(resumed(first), own + "step_8");
  EXPECT_FALSE(fs::exists(own + "step_8.aside.3"));
  EXPECT_EQ(go_on(second, first), Strings(2, "0 "));  // Another run's: that stays as it is.
  EXPECT_EQ(resumed(second), own + "step_8");
  EXPECT_EQ(go_on(second, own + "step_2"), Strings(2, "0 "));
  EXPECT_TRUE(fs::exists(own + "step_8"));
  ExpectEnd({go_on(first, "step_5")[0]}, "5", {"no complete checkpoint of step 5", "2, 4, 6, 8"});
  ExpectEnd({go_on(first, "nowhere")[0]}, "5", {"nowhere: is not a directory"});
}

TEST(EmaTest, FollowsTheWeightsFromTheFirstOnes) {
  const std::string start = UnusedPath("ema_start");
  ASSERT_EQ(Train(1, Tiny(start, {"train.steps=1", "checkpoint.every=1"}))[0], "0 ");
  const std::string first = start + "/checkpoints/step_1";
  for (const int world : {1, 3}) {
    const std::string run = UnusedPath("ema");
    const Recipe recipe =
        Tiny(run, {"train={steps: 4, ema: {decay: 0.75}}", "model={init_from: " + first + "}",
                   "checkpoint={every: 1, keep_last: 0}"});
    EXPECT_EQ(Train(world, recipe), Strings(world, "0 "));
    std::vector<float> want = StateOf(first, "master");
    for (int step = 1; step <= 4; ++step) {
      const std::string at = run + "/checkpoints/step_" + std::to_string(step);
      const std::vector<float> master = StateOf(at, "master"), ema = StateOf(at, "ema");
      ASSERT_EQ(ema.size(), want.size());
      float moved = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] += 0.25f * (master[i] - want[i]);
        // Whether the product is rounded before the sum is the compiler's choice.
        ASSERT_NEAR(ema[i], want[i], 1e-6 * std::max(std::abs(want[i]), std::abs(master[i])));
        moved = std::max(moved, std::abs(ema[i] - master[i]));
      }
      EXPECT_GT(moved, 1e-3f);
    }
  }
}

// Rank 1 is asked to stop at its k-th look: before each step, each micro-batch of an evaluation (4
// of them) and each token of a sample (3); rank 0 is one ahead at most. The evaluation that is cut
// short leaves nothing behind, and the resume makes it.
TEST(StopTest, CutsAnEvaluationShortAndAResumeMakesIt) {
  const std::string text = UnusedPath("text");
  std::ofstream(text) << std::string(1000, 'a') + std::string(1000, 'b');
  const auto recipe = [&](const std::string& run, bool samples) {
    Strings more = {"data={train: {source: text, paths: [" + text + "]}, valid: {fraction: 0.2}}",
                    "model.vocab_size=256", "train.steps=4", "eval={every: 2, steps: 2}",
                    "checkpoint={every: 2, keep_last: 0}"};
    if (samples) more.push_back("eval.sample={prompt: a, max_tokens: 3}");
    return Tiny(run, more);
  };
  const auto told = [](const std::string& run) {
    Strings told;
    for (const char* kind : {"step", "eval", "sample"}) {
      for (const auto& r : Records(run, kind)) {
        told.push_back(std::string(kind) + r["step"].dump() +
                       r[r.contains("loss") ? "loss" : "text"].dump());
      }
    }
    return told;
  };
  const std::string undisturbed = UnusedPath("undisturbed");
  ASSERT_EQ(Train(2, recipe(undisturbed, true)), Strings(2, "0 "));
  struct Case {
    bool samples;
    int k;
    int64_t step;
  };
  for (const auto& [samples, k, step] :
       {Case{true, 3, 2}, Case{true, 6, 2}, Case{true, 8, 2}, Case{true, 12, 4}, Case{true, 17, 4},
        Case{false, 3, 2}, Case{false, 10, 4}}) {
    Strings want = told(undisturbed);
    ASSERT_EQ(want.size(), 4u + 2u + 2u);
    if (!samples) want.resize(4u + 2u);
    const std::string run = UnusedPath("stopped");
    const auto stop = [k = k](Job& job) {
      if (job.rank != 1) return;
      // From step 1 on, which asks for reports, too. Another thread looks, but does not count.
      const auto looks = std::make_shared<std::atomic<int>>(0);
      job.stop_requested = [looks, k, rank = std::this_thread::get_id()] {
        const bool counts = *looks > 0 && std::this_thread::get_id() == rank;
        return (counts ? ++*looks : looks->load()) >= k;
      };
      job.take_report_request = [looks] {
        *looks = std::max(looks->load(), 1);
        return false;
      };
    };
    EXPECT_EQ(Train(2, recipe(run, samples), stop), Strings(2, "75 ")) << k;
    const std::string at = run + "/checkpoints/step_" + std::to_string(step);
    EXPECT_TRUE(ReadCheckpointMeta(at).evaluate_first) << k;
    EXPECT_EQ(Records(run, "step").size(), static_cast<size_t>(step)) << k;
    EXPECT_EQ(Records(run, "eval").size(), static_cast<size_t>(step / 2 - 1)) << k;

    EXPECT_EQ(Train(2, recipe(run, samples)), Strings(2, "0 ")) << k;
    EXPECT_EQ(told(run), want) << samples << " " << k;
    for (const int64_t s : {2, 4}) {  // checkpoint.keep_best looks at all of them.
      const std::string name = "/checkpoints/step_" + std::to_string(s);
      const CheckpointMeta meta = ReadCheckpointMeta(run + name);
      EXPECT_FALSE(meta.evaluate_first) << k;
      EXPECT_EQ(meta.evaluation, ReadCheckpointMeta(undisturbed + name).evaluation) << k;
    }
  }
}

// An evaluation of the average is that of a run whose weights are the average.
TEST(EmaTest, EvaluatesTheAverage) {
  size_t i = 0;
  for (const int world : {1, 2}) {
    ++i;
    for (const char* strategy : {"full_shard", "no_shard"}) {
      if (testing::OfAnotherPart(i++, 2)) continue;
      const Strings settings = {"data.valid={source: synthetic}", "eval={every: 1, steps: 2}",
                                std::string("fsdp.sharding_strategy=") + strategy,
                                "checkpoint={every: 1, keep_last: 0}"};
      const auto evaluate = [&](const std::string& name, const Strings& more) {
        Strings all = settings;
        all.insert(all.end(), more.begin(), more.end());
        const std::string run = UnusedPath(name);
        EXPECT_EQ(Train(world, Tiny(run, all)), Strings(world, "0 "));
        return Records(run, "eval").back()["loss"].get<double>();
      };
      const Strings train = {"train={steps: 4, ema: {decay: 0.9}}"};
      const double last = evaluate("last", train);
      const double averaged = evaluate("averaged", {train[0], "eval.ema=true"});
      EXPECT_NE(last, averaged);

      const std::string from = UnusedPath("averaged") + "/checkpoints/step_4";
      evaluate("averaged", {train[0], "eval.ema=true"});
      const std::string weights = UnusedPath("weights");
      CheckpointReader reader(from);
      const Manifest& manifest = reader.manifest();
      WriteCheckpoint(
          weights, {manifest.meta, Relayout(manifest.flat_parameters, 1), 1, {"master"}},
          [&](const std::string&, const Placement& p, int64_t begin, std::span<float> out) {
            reader.Read("ema", p.name, p.shape, begin, out);
          },
          nullptr);
      // A step that is too small to change any weight.
      const double want =
          evaluate("other", {"train.steps=1", "model={init_from: " + weights + "}",
                             "optimizer={name: sgd, lr: 1.0e-30, weight_decay: 0}"});
      EXPECT_EQ(averaged, want) << world << " " << strategy;
    }
  }
}

// The weights stand still: what differs between two steps' samples is what they are drawn with.
TEST(SampleTest, IsDrawnAnewAtEveryStep) {
  const std::string text = UnusedPath("sample_text");
  std::ofstream(text) << std::string(1000, 'a');
  const auto samples = [&] {
    const std::string run = UnusedPath("sample");
    const Recipe recipe =
        Tiny(run, {"data={train: {source: text, paths: [" + text + "]}, valid: {fraction: 0.2}}",
                   "model.vocab_size=256", "train.steps=2", "optimizer={name: sgd, lr: 0}",
                   "eval={every: 1, steps: 1, sample: {prompt: a, max_tokens: 30, temperature: 1}}",
                   "checkpoint={every: 1, keep_last: 0}"});
    EXPECT_EQ(Train(2, recipe), Strings(2, "0 "));
    const std::string at = run + "/checkpoints/step_";
    EXPECT_EQ(StateOf(at + "1", "master"), StateOf(at + "2", "master"));
    Strings texts;
    for (const auto& record : Records(run, "sample")) texts.push_back(record["text"].dump());
    return texts;
  };
  const Strings first = samples();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(samples(), first);
}

}  // namespace
}  // namespace fsdp
