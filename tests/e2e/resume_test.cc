// Stopped, killed or asked to save: what goes on from a checkpoint is the run that never stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "tests/e2e/rank_files.h"
#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

Strings With(Strings settings, const Strings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Outcome RunOn(const Job& job, int world, const Strings& settings) {
  return world == 1 ? job.Train(settings) : job.Launch(world, settings);
}

// The part of a run that does not depend on when and how often it was stopped, by step.
std::vector<Json> Curve(const std::string& run_directory) {
  std::vector<Json> curve;
  for (const Json& record : OfKind(ReadMetrics(run_directory), "step")) {
    Json kept;
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) kept[key] = record[key];
    curve.push_back(kept);
  }
  return curve;
}

std::vector<Json> Evaluations(const std::string& run_directory, int64_t every) {
  std::vector<Json> evaluations;
  for (const Json& record : OfKind(ReadMetrics(run_directory), "eval")) {
    if (record["step"].get<int64_t>() % every == 0) evaluations.push_back(record);
  }
  return evaluations;
}

// Both runs have `steps` steps: the same losses, norms and final state, bit for bit.
void ExpectSameRun(const std::string& got, const std::string& want, int64_t steps,
                   const std::string& what) {
  const std::vector<Json> curve = Curve(got), expected = Curve(want);
  ASSERT_EQ(expected.size(), static_cast<size_t>(steps)) << what;
  ASSERT_EQ(curve.size(), expected.size()) << what;
  for (size_t i = 0; i < curve.size(); ++i) {
    ASSERT_EQ(expected[i]["step"], i + 1) << what;
    ASSERT_EQ(curve[i], expected[i]) << what;
  }
  EXPECT_TRUE(RankFiles(got, steps) == RankFiles(want, steps)) << what << ": other bytes";
  EXPECT_EQ(ReadFile(got + "/checkpoints/latest"), "step_" + std::to_string(steps)) << what;
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  return text;
}

// With evaluations, samples and checkpoints in between.
Strings Full(const Job& job) {
  return {"model.vocab_size=256",
          "data.train={source: text, paths: [" + job.dir().Write("text", Text()) + "]}",
          "data.valid={fraction: 0.05}",
          "train.global_batch_size=5",
          "train.ema={decay: 0.9}",
          "eval={every: 4, steps: 2, ema: true, sample: {prompt: 'line ', max_tokens: 5}}",
          "checkpoint={every: 5, keep_last: 0}"};
}

struct Mode {
  int world;
  bool async;
};
void PrintTo(const Mode& mode, std::ostream* out) {
  *out << "world " << mode.world << (mode.async ? "" : ", not async");
}
std::string Async(bool async) {
  return std::string("checkpoint.async=") + (async ? "true" : "false");
}

class ResumeTest : public ::testing::TestWithParam<Mode> {
 protected:
  const int world = GetParam().world;
  Strings Settings(Strings settings) const {
    settings.push_back(Async(GetParam().async));
    return settings;
  }
};

TEST_P(ResumeTest, AtAnyStepGivesTheSameBits) {
  Job job;
  const Strings settings = Settings(Full(job));
  const std::string want = job.RunDir("unbroken");
  const Outcome unbroken = RunOn(job, world, With(settings, {"train.steps=12"}));
  ASSERT_EQ(unbroken.code, 0) << unbroken.Text();
  const std::vector<std::vector<int64_t>> stops =
      world == 1 ? std::vector<std::vector<int64_t>>{{1}, {2}, {3}, {4}, {5}, {6}, {11}, {2, 3, 7}}
                 : std::vector<std::vector<int64_t>>{{1}, {5}, {4, 10}};
  for (const std::vector<int64_t>& at : stops) {
    std::string what = "stopped after";
    for (const int64_t step : at) what += " " + std::to_string(step);
    const std::string got = job.RunDir("at_" + std::to_string(at[0]) + std::to_string(at.size()));
    for (const int64_t step : at) {
      const Outcome part =
          RunOn(job, world, With(settings, {"train.steps=" + std::to_string(step)}));
      ASSERT_EQ(part.code, 0) << part.Text();
      EXPECT_EQ(LastStep(got), step);
    }
    const Outcome rest = RunOn(job, world, With(settings, {"train.steps=12"}));
    ASSERT_EQ(rest.code, 0) << rest.Text();
    ExpectSameRun(got, want, 12, what);
    EXPECT_EQ(Evaluations(got, 4), Evaluations(want, 4)) << what;

    const std::vector<Json> records = ReadMetrics(got);
    EXPECT_EQ(OfKind(records, "run").size(), at.size() + 1);
    const std::vector<Json> resumes = OfKind(records, "resume");
    ASSERT_EQ(resumes.size(), at.size());
    for (size_t i = 0; i < at.size(); ++i) EXPECT_EQ(resumes[i]["step"], at[i]);
    EXPECT_EQ(OfKind(records, "end").size(), 1u);
    EXPECT_EQ(records.back()["kind"], "end");
    int64_t last = 0;
    for (const Json& record : records) {
      // A checkpoint is recorded when it counts, while training goes on.
      if (!record.contains("step") || record["kind"] == "checkpoint") continue;
      EXPECT_GE(record["step"].get<int64_t>(), last) << record;
      last = record["step"];
    }
  }
}

TEST_P(ResumeTest, FromAnEarlierStepDropsWhatCameAfter) {
  Job job;
  const Strings settings =
      With(Settings(Full(job)), {"train.steps=12", "schedule={name: cosine, warmup_steps: 3}"});
  const Outcome first = RunOn(job, world, settings);
  ASSERT_EQ(first.code, 0) << first.Text();
  const std::vector<Json> curve = Curve(job.run_dir()), evals = Evaluations(job.run_dir(), 1);
  const auto bytes = RankFiles(job.run_dir(), 12);
  const Outcome again = RunOn(job, world, With(settings, {"checkpoint.resume=5"}));
  ASSERT_EQ(again.code, 0) << again.Text();
  EXPECT_NE(again.out.find("step_5, step 5"), std::string::npos) << again.out;
  EXPECT_EQ(Curve(job.run_dir()), curve);
  EXPECT_EQ(Evaluations(job.run_dir(), 1), evals);
  EXPECT_TRUE(RankFiles(job.run_dir(), 12) == bytes);
  const Outcome none = RunOn(job, world, With(settings, {"checkpoint.resume=7"}));
  EXPECT_EQ(none.code, 5) << none.Text();
  EXPECT_NE(none.err.find("5, 10, 12"), std::string::npos) << none.err;
}

// A run that goes on until something happens to it. Saves every 10 steps where `every` says so.
Strings Endless(const std::string& every = "0") {
  return {"train.steps=100000000", "checkpoint.every=" + every};
}

TEST_P(ResumeTest, AfterASignalGivesTheSameBits) {
  Job job;
  const std::string got = job.RunDir("stopped");
  const Strings endless = Settings(Endless("7"));
  Process run = job.Start(world == 1 ? job.Flags(endless) : job.LaunchArguments(world, endless));
  ASSERT_TRUE(Eventually([&] { return LastStep(got) >= 7; })) << run.Out();
  run.Signal(world == 2 ? SIGINT : SIGTERM);
  const Outcome stopped = run.Wait();  // In full: stop_test.
  ASSERT_EQ(stopped.code, 75) << stopped.Text();
  const int64_t step = LastStep(got);
  const Strings rest = {"train.steps=" + std::to_string(step + 5), "checkpoint.every=1000000"};
  ASSERT_EQ(RunOn(job, world, rest).code, 0);
  const std::string want = job.RunDir("unbroken");
  ASSERT_EQ(RunOn(job, world, rest).code, 0);
  ExpectSameRun(got, want, step + 5, "stopped after " + std::to_string(step));
}

TEST_P(ResumeTest, SavesWhenAskedToAndGoesOn) {
  Job job;
  const Strings endless = Settings(Endless("100000000"));
  Process run = job.Start(world == 1 ? job.Flags(endless) : job.LaunchArguments(world, endless));
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 3; }));
  run.Signal(SIGUSR1);
  const auto saved = [&] { return OfKind(ReadMetrics(job.run_dir()), "checkpoint"); };
  ASSERT_TRUE(Eventually([&] { return !saved().empty(); })) << run.Out();
  const Json record = saved()[0];
  const auto step = record["step"].get<int64_t>();
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= step + 20; })) << run.Out();
  // The launcher tells the ranks one after another: one that hears of it late asks once more.
  EXPECT_LE(saved().size(), static_cast<size_t>(world));
  const std::string directory = job.run_dir() + "/checkpoints/step_" + std::to_string(step);
  EXPECT_EQ(record["path"], directory);
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(record["bytes"], bytes);
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait().code, 75);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ResumeTest,
                         ::testing::Values(Mode{1, true}, Mode{2, true}, Mode{3, true},
                                           Mode{1, false}, Mode{2, false}));

// Two runs agree but for the order of sums: 5 x 16 targets a batch, in each of the steps so far.
void ExpectSameToRounding(const std::string& got, const std::string& want, size_t steps) {
  const std::vector<Json> curve = Curve(got), expected = Curve(want);
  ASSERT_EQ(expected.size(), steps);
  ASSERT_EQ(curve.size(), steps);
  for (size_t i = 0; i < steps; ++i) {
    const double tolerance = static_cast<double>(i + 1) * 80 * std::ldexp(1, -24);
    for (const char* key : {"loss", "grad_norm"}) {
      const auto a = curve[i][key].get<double>(), b = expected[i][key].get<double>();
      EXPECT_LE(std::abs(a - b), tolerance * b) << key << " of " << curve[i];
    }
    EXPECT_EQ(curve[i]["lr"], expected[i]["lr"]);
    EXPECT_EQ(curve[i]["tokens"], expected[i]["tokens"]);
  }
}

// Compute copies are not saved: they are made of the masters again. Moments are rounded by the
// updates' numbers, which go on.
TEST(Resume, InBFloat16GivesTheSameBits) {
  Job job;
  for (const int world : {1, 2}) {
    for (const std::string strategy : {"full_shard", "no_shard"}) {
      const std::string what = strategy + " on " + std::to_string(world);
      const Strings settings =
          With(Full(job), {"fsdp={sharding_strategy: " + strategy +
                               ", mixed_precision: {param_dtype: bf16, keep_fp32: ['*ln_*'], "
                               "master_dtype: " +
                               (strategy == "no_shard" ? "bf16" : "fp32") + "}}",
                           "optimizer.state_dtype=bf16"});
      const std::string want = job.RunDir("unbroken_" + std::to_string(world) + strategy);
      ASSERT_EQ(RunOn(job, world, With(settings, {"train.steps=12"})).code, 0) << what;
      const std::string got = job.RunDir("broken_" + std::to_string(world) + strategy);
      ASSERT_EQ(RunOn(job, world, With(settings, {"train.steps=5"})).code, 0) << what;
      ASSERT_EQ(RunOn(job, world, With(settings, {"train.steps=12"})).code, 0) << what;
      ExpectSameRun(got, want, 12, what);
    }
  }
}

// On both sides of the cut there are steps that change nothing, and scales that grow again.
TEST(Resume, InFloat16GivesTheSameBitsAndScales) {
  Job job;
  for (const int world : {1, 2}) {
    const Strings settings =
        With(Full(job),
             {"log.every=1",
              "fsdp.mixed_precision={param_dtype: fp16, grad_dtype: fp16, reduce_dtype: fp16, "
              "scaler: {init_scale: 6.7e+7, growth_interval: 3}}"});
    const std::string number = std::to_string(world);
    const std::string want = job.RunDir("unbroken_" + number);
    ASSERT_EQ(RunOn(job, world, With(settings, {"train.steps=24"})).code, 0);
    const std::string got = job.RunDir("broken_" + number);
    for (const char* steps : {"train.steps=2", "train.steps=13", "train.steps=24"}) {
      ASSERT_EQ(RunOn(job, world, With(settings, {steps})).code, 0);
    }
    ExpectSameRun(got, want, 24, number);
    std::vector<double> scales;
    for (const Json& step : OfKind(ReadMetrics(want), "step")) scales.push_back(step["loss_scale"]);
    EXPECT_TRUE(std::is_sorted(scales.begin(), scales.begin() + 3, std::greater_equal<>()));
    const auto skipped = OfKind(ReadMetrics(want), "skipped");
    EXPECT_GE(skipped.size(), 4u);
    EXPECT_GT(skipped.back()["step"].get<int>(), 13) << "none behind the last cut";
    EXPECT_LT(skipped.front()["step"].get<int>(), 3) << "none before the first";
    EXPECT_EQ(OfKind(ReadMetrics(got), "skipped").size(), skipped.size());
  }
}

// Masters and state change their place at each cut; averages are evaluated from there, too.
TEST(Resume, InAnotherPlaceGivesTheSameBits) {
  Job job;
  for (const int world : {1, 2}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      const std::string what = dtype + "_on_" + std::to_string(world);
      const Strings settings = With(Full(job), {"fsdp.mixed_precision.param_dtype=" + dtype,
                                                "log.every=1", "model.num_hidden_layers=3"});
      const std::string want = job.RunDir("unbroken_" + what);
      ASSERT_EQ(RunOn(job, world, With(settings, {"train.steps=14"})).code, 0) << what;
      const std::string got = job.RunDir("broken_" + what), disk = job.dir() / "disk";
      fs::create_directories(disk);
      const auto until = [&](int steps, const std::string& offload) {
        const Outcome part = RunOn(
            job, world,
            With(settings, {"train.steps=" + std::to_string(steps),
                            "train.activation_offload=" + std::string(steps == 13      ? "spill"
                                                                      : steps % 2 == 0 ? "host"
                                                                                       : "none"),
                            "fsdp.cpu_offload={" + offload + "}"}));
        ASSERT_EQ(part.code, 0) << part.Text();
      };
      until(3, "optimizer: true");
      until(6, "optimizer: true, params: true, spill: " + disk);
      until(9, "optimizer: true, optimizer_share: 0.5, threads: 2");
      until(11, "optimizer: false");
      until(13, "optimizer: true, optimizer_share: 0.4, spill_ahead: 0, spill: " + disk);
      until(14, "optimizer: true, params: true, optimizer_share: 0.5");
      EXPECT_TRUE(fs::is_empty(disk));
      ExpectSameRun(got, want, 14, what);
      EXPECT_EQ(Evaluations(got, 4), Evaluations(want, 4)) << what;
      double waited = 0;
      for (const Json& step : OfKind(ReadMetrics(got), "step")) {
        waited += step["time"]["offload"].get<double>();
        EXPECT_GT(step["memory"]["host"], 0);
        const int64_t n = step["step"];
        EXPECT_EQ(step["memory"]["disk"] > 0, (n > 3 && n <= 6) || (n > 11 && n <= 13)) << n;
      }
      // Where ranks gather, it is the gather that waits.
      EXPECT_GE(waited, world == 1 ? 1e-9 : 0) << "an update on the host takes no time?";
    }
  }
}

TEST(Resume, OverAChainOfWorldsAndStrategies) {
  Job job;
  const Strings settings = With(Full(job), {"optimizer={name: sgd, lr: 0.5, momentum: 0.9}"});
  const std::string want = job.RunDir("unbroken");
  ASSERT_EQ(RunOn(job, 1, With(settings, {"train.steps=16"})).code, 0);
  const std::string got = job.RunDir("chain");
  struct Link {
    int world, steps;
    const char* setting;
  };
  for (const Link& link : {Link{4, 4, "fsdp.sharding_strategy=full_shard"},
                           Link{3, 8, "fsdp.sharding_strategy=shard_grad_op"},
                           Link{1, 10, "fsdp.sharding_strategy=no_shard"},
                           Link{4, 13, "fsdp={sharding_strategy: hybrid_shard, shard_size: 2}"},
                           Link{2, 16, "fsdp={auto_wrap: {policy: none}, communicators: 1}"}}) {
    const Outcome part =
        RunOn(job, link.world,
              With(settings, {"train.steps=" + std::to_string(link.steps), link.setting}));
    ASSERT_EQ(part.code, 0) << part.Text();
    EXPECT_EQ(LastStep(got), link.steps);
  }
  ExpectSameToRounding(got, want, 16);
  EXPECT_EQ(OfKind(ReadMetrics(got), "resume").size(), 4u);
}

// An untied embedding and head leave their units for the root and come back: another layout, whose
// sums are those of the first, element for element. Only the norm's are in another order.
TEST(Resume, IntoTheRootAndBackChangesNoBit) {
  Job job;
  const Strings settings =
      With(Full(job), {"model.tie_word_embeddings=false", "train.grad_clip=0"});
  const std::string want = job.RunDir("unbroken");
  ASSERT_EQ(RunOn(job, 2, With(settings, {"train.steps=9"})).code, 0);
  const std::string got = job.RunDir("moved");
  for (const auto& [steps, fsdp] :
       {std::pair{3, "fsdp={auto_wrap: {outside: units}}"},
        {5, "fsdp={auto_wrap: {outside: root}}"},
        {7, "fsdp={auto_wrap: {outside: root}, limiter: host, buffers: caching}"},
        {9, "fsdp={auto_wrap: {outside: units}}"}}) {
    const Outcome part =
        RunOn(job, 2, With(settings, {"train.steps=" + std::to_string(steps), fsdp}));
    ASSERT_EQ(part.code, 0) << part.Text();
  }
  const std::vector<Json> curve = Curve(got), expected = Curve(want);
  ASSERT_EQ(curve.size(), 9u);
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i]["loss"], expected[i]["loss"]) << i;
    const double norm = expected[i]["grad_norm"];
    EXPECT_NEAR(curve[i]["grad_norm"].get<double>(), norm, 1e-6 * norm) << i;
  }
  EXPECT_EQ(Evaluations(got, 4), Evaluations(want, 4));
  EXPECT_TRUE(RankFiles(got, 9) == RankFiles(want, 9)) << "other bytes";
}

TEST(Resume, ElsewhereSeesTheSameSamplesToRounding) {
  Job job;
  const Strings settings = With(Full(job), {"optimizer={name: sgd, lr: 0.5, momentum: 0.9}"});
  const std::string want = job.RunDir("unbroken");
  ASSERT_EQ(RunOn(job, 1, With(settings, {"train.steps=14"})).code, 0);
  const std::string begun = job.RunDir("begun");
  ASSERT_EQ(RunOn(job, 2, With(settings, {"train.steps=7"})).code, 0);
  struct Case {
    int world;
    Strings settings;
  };
  for (const Case& c :
       {Case{1, {}}, Case{3, {}}, Case{4, {"fsdp.auto_wrap.policy=none"}},
        Case{2, {"fsdp.sharding_strategy=no_shard"}},
        Case{3, {"fsdp.sharding_strategy=shard_grad_op"}},
        Case{4, {"fsdp={sharding_strategy: hybrid_shard_grad_op, shard_size: 2}"}}}) {
    const std::string got = job.RunDir("elsewhere");
    fs::copy(begun, got, fs::copy_options::recursive);
    const Outcome rest = RunOn(job, c.world, With(With(settings, {"train.steps=14"}), c.settings));
    ASSERT_EQ(rest.code, 0) << rest.Text();
    ExpectSameToRounding(got, want, 14);
    fs::remove_all(got);
  }
}

TEST(Resume, RefusesADamagedCheckpoint) {
  Job job;
  const Strings settings = {"train.steps=5", "checkpoint.every=100"};
  ASSERT_EQ(RunOn(job, 2, settings).code, 0);
  const std::string step = job.run_dir() + "/checkpoints/step_5/";
  for (const char* name : {"rank_0.safetensors", "rank_1.safetensors", "manifest.json"}) {
    const std::string whole = ReadFile(step + name);
    ASSERT_GT(whole.size(), 100u);
    for (const size_t at : {size_t{9}, whole.size() / 2, whole.size() - 2}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      std::ofstream(step + name, std::ios::binary) << damaged;
      const Outcome outcome = RunOn(job, 2, {"train.steps=6", "checkpoint.every=100"});
      EXPECT_EQ(outcome.code, 5) << name << ", byte " << at << "\n" << outcome.Text();
      EXPECT_NE(outcome.err.find("step_5"), std::string::npos) << outcome.err;
      EXPECT_EQ(LastStep(job.run_dir()), 5);
    }
    std::ofstream(step + name, std::ios::binary) << whole;
  }
  const Outcome whole = RunOn(job, 2, {"train.steps=6", "checkpoint.every=100"});
  EXPECT_EQ(whole.code, 0) << whole.Text();
}

TEST(Resume, NotFiniteLeavesTheLastCheckpoint) {
  Job job;
  const Strings settings = {"optimizer={name: sgd, lr: 1.0e+30}", "train.grad_clip=0",
                            "checkpoint.every=1"};
  for (int i = 0; i < 2; ++i) {  // The second goes on from the first one's, to the same end.
    const Outcome outcome = RunOn(job, 2, settings);
    EXPECT_EQ(outcome.code, 7) << outcome.Text();
    EXPECT_EQ(ReadFile(job.run_dir() + "/checkpoints/latest"), "step_1");
    EXPECT_EQ(RankFiles(job.run_dir(), 1).size(), 2u);
    EXPECT_EQ(LastStep(job.run_dir()), 2);
  }
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "resume").size(), 1u);
}

TEST(Restart, GoesOnFromTheLastCheckpoint) {
  Job job;
  Process run = job.Start(job.LaunchArguments(3, Endless("10"), {"--max-restarts", "1"}));
  const auto of_kind = [&](const char* kind) { return OfKind(ReadMetrics(job.run_dir()), kind); };
  ASSERT_TRUE(Eventually([&] { return !of_kind("checkpoint").empty(); })) << run.Out();
  ASSERT_EQ(kill(RanksOf(run.pid()).at(1), SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return !of_kind("resume").empty(); })) << run.Out();
  const auto from = of_kind("resume")[0]["step"].get<int64_t>();
  EXPECT_GE(from, 10);
  EXPECT_EQ(from % 10, 0);
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > from + 10; })) << run.Out();
  run.Signal(SIGTERM);
  const Outcome outcome = run.Wait();
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
  EXPECT_NE(outcome.err.find("restart 1 of 1"), std::string::npos) << outcome.err;
  const std::vector<Json> steps = of_kind("step");
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i]["step"], i + 1);

  // The same steps in one go.
  const int64_t last = LastStep(job.run_dir());
  const std::string got = job.run_dir(), want = job.RunDir("unbroken");
  const Outcome unbroken = job.Launch(
      3, {"train.steps=" + std::to_string(last), "checkpoint.every=10", "checkpoint.keep_last=0"});
  ASSERT_EQ(unbroken.code, 0) << unbroken.Text();
  ExpectSameRun(got, want, last, "restarted");
}

// Killed at any moment of saving, the run goes on from a complete checkpoint and loses no bit.
struct Saves {
  bool async, spill;
};
void PrintTo(const Saves& saves, std::ostream* out) {
  *out << (saves.async ? "async" : "not async") << (saves.spill ? ", spilled" : "");
}
class Killed : public ::testing::TestWithParam<Saves> {};
INSTANTIATE_TEST_SUITE_P(Async, Killed,
                         ::testing::Values(Saves{false, false}, Saves{true, false},
                                           Saves{true, true}));

TEST_P(Killed, WhileSaving) {
  constexpr int kWorld = 2, kKills = 12;
  std::mt19937 random(20240229);
  Job job;
  const std::string got = job.RunDir("killed");
  Strings saving = Endless("1");
  saving.push_back("checkpoint.keep_last=1");
  saving.push_back(Async(GetParam().async));
  const std::string disk = job.dir() / "disk";
  fs::create_directory(disk);
  if (GetParam().spill) saving.push_back("fsdp.cpu_offload={optimizer: true, spill: " + disk + "}");
  for (int i = 0; i < kKills; ++i) {
    const size_t starts = OfKind(ReadMetrics(got), "run").size();
    const int64_t before = LastStep(got);
    Process run = job.Start(job.LaunchArguments(kWorld, saving));
    // From the first step on every step is saved: whenever we come, it is at that. Two more than
    // the last kill saw: the save of the first is then complete, because that of the second has
    // begun.
    ASSERT_TRUE(Eventually([&] {
      const std::vector<Json> records = ReadMetrics(got);
      return !run.Running() ||
             (OfKind(records, "run").size() > starts && LastStep(got) > before + 2);
    })) << run.Out();
    const std::map<int, pid_t> ranks = RanksOf(run.pid());
    const auto delay = std::chrono::microseconds(random() % 30000);
    std::this_thread::sleep_for(delay);
    const uint32_t victim = random() % (kWorld + 1);
    const pid_t pid = victim == kWorld ? run.pid() : ranks.at(static_cast<int>(victim));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    EXPECT_EQ(run.Wait().code, 128 + SIGKILL);
    ASSERT_TRUE(Eventually([&] {  // Launch's ranks die with it, but not before it.
      for (const auto& [rank, rank_pid] : ranks) {
        if (kill(rank_pid, 0) == 0) return false;
      }
      return true;
    }));
    EXPECT_TRUE(fs::is_empty(disk));
  }
  const int64_t last = LastStep(got) + 3;
  const Strings rest = {"train.steps=" + std::to_string(last), "checkpoint.every=1",
                        "checkpoint.keep_last=1"};
  const Outcome outcome = RunOn(job, kWorld, rest);
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const std::string want = job.RunDir("unbroken");
  ASSERT_EQ(
      RunOn(job, kWorld, {"train.steps=" + std::to_string(last), "checkpoint.every=1000000"}).code,
      0);
  // Every start went on: none found less than the one before it had left.
  EXPECT_EQ(OfKind(ReadMetrics(got), "run").size(), size_t{kKills} + 1);
  EXPECT_EQ(OfKind(ReadMetrics(got), "resume").size(), size_t{kKills});
  EXPECT_FALSE(Exists(got + "/metrics.1.jsonl"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(got + "/checkpoints")) {
    left.push_back(entry.path().filename());
  }
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"latest", "step_" + std::to_string(last)}));
  ExpectSameRun(got, want, last, "killed " + std::to_string(kKills) + " times");
}

}  // namespace
}  // namespace fsdp::e2e
