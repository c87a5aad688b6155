// Evaluations decide which checkpoints stay, and when a run has had enough.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Outcome RunOn(const Job& job, int world, const Strings& settings) {
  return world == 1 ? job.Train(settings) : job.Launch(world, settings);
}

std::set<int64_t> Kept(const Job& job) {
  std::set<int64_t> steps;
  for (int64_t step = 1; step <= 100; ++step) {
    if (Exists(job.run_dir() + "/checkpoints/step_" + std::to_string(step))) steps.insert(step);
  }
  return steps;
}

// A model that learns nothing: no evaluation is better than the first.
Strings Still(const Strings& more) {
  Strings settings = {"optimizer.lr=0", "optimizer.weight_decay=0",
                      "data.valid={source: synthetic}", "eval={every: 2, steps: 1}"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Which checkpoint of the run eval, generate, export and `ls` take, and the line they say it by.
void ExpectTaken(const Job& job, const std::string& step, const std::string& flag,
                 const std::string& line) {
  const std::string& run = job.run_dir();
  const std::string out = job.dir() / ("export_" + step + flag);
  const std::string checkpoint = run + "/checkpoints/step_" + step;
  for (Strings command :
       {Strings{"eval", "--checkpoint", run},
        Strings{"generate", "--checkpoint", run, "--prompt-ids", "1", "--max-tokens", "1"},
        Strings{"checkpoint", "export", run, "--out", out}}) {
    if (!flag.empty()) command.push_back(flag);
    const Outcome taken = Call(command);
    EXPECT_EQ(taken.code, 0) << taken.Text();
    EXPECT_EQ(Has(taken.out + taken.err, "early stopping"), !line.empty()) << taken.Text();
    EXPECT_TRUE(Has(taken.out + taken.err, line)) << taken.Text();
    if (command[0] == "eval") {
      EXPECT_TRUE(Has(taken.out, checkpoint + ": step " + step + ",")) << taken.out;
      const Outcome named = Call({"eval", "--checkpoint", checkpoint});
      EXPECT_FALSE(Has(named.out, "early stopping")) << named.out;
    }
  }
  const Json list = Json::parse(Call({"checkpoint", "ls", "--json", run}).out)["checkpoints"];
  for (const Json& entry : list) {
    EXPECT_EQ(entry["best"], ReadFile(run + "/checkpoints/best") ==
                                 "step_" + std::to_string(entry["step"].get<int64_t>()));
    EXPECT_TRUE(entry["loss"].is_number()) << entry;
  }
}

TEST(StopAfter, EndsARunWhoseEvaluationsGetNoBetter) {
  for (const int world : {1, 2}) {
    Job job;
    const Strings settings = Still(
        {"eval.stop_after=2", "train.steps=50", "checkpoint.every=2", "checkpoint.keep_last=1"});
    const Outcome run = RunOn(job, world, settings);
    ASSERT_EQ(run.code, 0) << run.Text();
    EXPECT_TRUE(Has(run.out, "step 6 is the last: the best evaluation, ") &&
                Has(run.out, ", was 2 evaluations ago (eval.stop_after)"))
        << run.out;
    EXPECT_EQ(LastStep(job.run_dir()), 6);
    // The first evaluation's checkpoint stays, and is the one to take.
    EXPECT_EQ(Kept(job), (std::set<int64_t>{2, 6}));
    const Json end = ReadMetrics(job.run_dir()).back();
    EXPECT_EQ(end["reason"], "done");
    EXPECT_TRUE(Has(end["early_stopping"], "2 evaluations ago"));
    const std::string best = job.run_dir() + "/checkpoints/step_2";
    EXPECT_EQ(ReadFile(job.run_dir() + "/checkpoints/best"), "step_2");
    EXPECT_TRUE(Has(run.out, "its best checkpoint is step_2, of loss ") &&
                Has(run.out, "checkpoint export " + best + " --out DIR"))
        << run.out;
    ExpectTaken(job, "2", "", "ended by early stopping: its best checkpoint is step_2");
    ExpectTaken(job, "6", "--latest", "");
    // It stays ended, and says how to have more of it.
    const Outcome again = RunOn(job, world, settings);
    EXPECT_EQ(again.code, 0) << again.Text();
    EXPECT_TRUE(Has(again.out, "--set eval.stop_after=null")) << again.out;
    EXPECT_EQ(LastStep(job.run_dir()), 6);
    // A resume goes on from the newest. A run that went on has not stopped early.
    EXPECT_EQ(RunOn(job, world, Still({"train.steps=9", "checkpoint.every=0"})).code, 0);
    EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "resume").back()["step"], 6);
    EXPECT_EQ(LastStep(job.run_dir()), 9);
    if (world == 1) ExpectTaken(job, "9", "", "");
  }
}

TEST(StopAfter, CountsOnThroughAResume) {
  Job job;
  ASSERT_EQ(job.Train(Still({"eval.stop_after=3", "train.steps=4"})).code, 0);
  ASSERT_EQ(job.Train(Still({"eval.stop_after=3", "train.steps=5"})).code, 0);
  // Evaluated after steps 2, 4 and 5 (its last), and then after 6.
  ASSERT_EQ(job.Train(Still({"eval.stop_after=3", "train.steps=50"})).code, 0);
  EXPECT_EQ(LastStep(job.run_dir()), 6);
}

TEST(StopAfter, LetsARunThatLearnsTakeAllItsSteps) {
  Job job;
  const Outcome run = job.Train({"data.valid={source: synthetic}", "eval={every: 2, steps: 4}",
                                 "eval.stop_after=3", "optimizer.lr=1e-3"});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_EQ(LastStep(job.run_dir()), 10);
  EXPECT_FALSE(Has(run.out, "eval.stop_after")) << run.out;
}

TEST(KeepBest, KeepsTheLowestLossesBesideTheNewest) {
  for (const int world : {1, 2}) {
    Job job;
    const Outcome run =
        RunOn(job, world,
              {"data.valid=[{name: a, source: synthetic}, {name: b, source: synthetic}]",
               "eval={every: 2, steps: 1}", "optimizer.lr=0.2", "train.steps=16",
               "checkpoint={every: 1, keep_last: 2, keep_best: 2}"});
    ASSERT_EQ(run.code, 0) << run.Text();
    std::map<int64_t, double> losses;
    for (const Json& eval : OfKind(ReadMetrics(job.run_dir()), "eval")) {
      losses[eval["step"]] += eval["loss"].get<double>() / 2;
    }
    // By the rule, save after save.
    std::set<int64_t> kept;
    for (int64_t step = 1; step <= 16; ++step) {
      kept.insert(step);
      std::vector<std::pair<double, int64_t>> best;
      for (const int64_t s : kept) {
        if (losses.count(s) > 0 && s <= step) best.emplace_back(losses[s], s);
      }
      std::sort(best.begin(), best.end());
      if (best.size() > 2) best.resize(2);
      std::erase_if(kept, [&](int64_t s) {
        return s < step - 1 &&
               std::none_of(best.begin(), best.end(), [&](const auto& b) { return b.second == s; });
      });
    }
    EXPECT_EQ(Kept(job), kept) << run.Text();
    EXPECT_GT(kept.size(), 2u);
  }
}

TEST(KeepBest, AndStopAfterAskForEvaluations) {
  Job job;
  for (const char* setting : {"eval.stop_after=2", "checkpoint.keep_best=2"}) {
    const Outcome refused = job.Train({setting});
    EXPECT_EQ(refused.code, 2) << refused.Text();
    EXPECT_TRUE(Has(refused.err, "eval.every is 0")) << refused.err;
  }
  const Outcome all = job.Train(Still({"checkpoint={keep_best: 2, keep_last: 0}"}));
  EXPECT_EQ(all.code, 2) << all.Text();
  EXPECT_TRUE(Has(all.err, "which keeps all")) << all.err;
}

// 1,000 bytes are 62 windows of 16 and a byte, and 90 % of them 56; four make a step.
TEST(Epochs, AreAsManyStepsAsTheDataHas) {
  Job job;
  const std::string text = job.dir().Write("text", std::string(1000, 'a'));
  const Strings data = {"model.vocab_size=256", "train.steps=null",
                        "data.train={source: text, paths: [" + text + "]}",
                        "data.valid={fraction: 0.1}"};
  const auto run = [&](const char* epochs, int world) {
    job.RunDir(std::string(epochs) + "_" + std::to_string(world));
    Strings settings = data;
    settings.push_back(std::string("train.epochs=") + epochs);
    return RunOn(job, world, settings);
  };
  const struct {
    const char* epochs;
    int world;
    int64_t steps;
  } cases[] = {{"0.5", 1, 7}, {"1", 3, 14}, {"1.5", 2, 21}, {"0.001", 1, 1}};
  for (const auto& c : cases) {
    const Outcome outcome = run(c.epochs, c.world);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_EQ(LastStep(job.run_dir()), c.steps) << c.epochs;
    EXPECT_TRUE(Has(outcome.out, "train.steps: " + std::to_string(c.steps) +
                                     ", which are train.epochs: " + c.epochs))
        << outcome.out;
    const std::string recipe = ReadFile(job.run_dir() + "/recipe.yaml");
    EXPECT_TRUE(Has(recipe, "  steps: " + std::to_string(c.steps) + "\n") &&
                Has(recipe, "  epochs: null\n"))
        << recipe;
  }
  // As a resume of what has as many steps, and a longer one.
  EXPECT_TRUE(Has(run("1", 3).out, "nothing to do"));
  Strings on = data;
  on.push_back("train.epochs=1.2");
  EXPECT_EQ(RunOn(job, 1, on).code, 0);
  EXPECT_EQ(LastStep(job.run_dir()), 17);
  for (const auto& [settings, want] : std::vector<std::pair<Strings, std::string>>{
           {{"train.epochs=2", "train.steps=5"}, "train.epochs stands in place of train.steps"},
           {{"train.steps=null"}, "how long is the run?"},
           {{"train.epochs=1e9", "train.steps=null"}, "more than 2147483647 steps"}}) {
    job.RunDir("refused");
    const Outcome refused = job.Train(settings);
    EXPECT_EQ(refused.code, 2) << refused.Text();
    EXPECT_TRUE(Has(refused.err, want)) << refused.err;
    EXPECT_FALSE(Exists(job.run_dir()));
  }
  // The printed recipe reads back.
  const Outcome printed = Call({"config", "print", "--config", job.recipe(), "--set",
                                "train.steps=null", "--set", "train.epochs=2"});
  const std::string again = job.dir().Write("printed.yaml", printed.out);
  EXPECT_EQ(Call({"config", "print", "--config", again}).out, printed.out) << printed.Text();
}

TEST(EveryMinutes, SavesByTheClockOfTheFirstRank) {
  for (const int world : {1, 2}) {
    for (const char* async : {"true", "false"}) {
      Job job;
      const Outcome often = RunOn(job, world,
                                  {std::string("checkpoint={every: null, every_minutes: 1.0e-9, "
                                               "keep_last: 0, async: ") +
                                   async + "}"});
      ASSERT_EQ(often.code, 0) << often.Text();
      EXPECT_GE(Kept(job).size(), 3u);
      job.RunDir("seldom");
      const Outcome seldom = RunOn(job, world, {"checkpoint={every: null, every_minutes: 60}"});
      ASSERT_EQ(seldom.code, 0) << seldom.Text();
      EXPECT_TRUE(Kept(job).empty());
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
