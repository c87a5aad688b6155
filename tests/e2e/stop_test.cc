// Stops of a run that trains: by a signal at any moment, by a second one, and when its time is
// over.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "tests/e2e/run_binary.h"
#include "tests/testing/everything.h"

namespace fsdp::e2e {
namespace {

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Strings LinesOf(const std::string& text, const std::string& prefix) {
  Strings lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("[0] ")) line = line.substr(4);  // A launcher's.
    if (line.starts_with(prefix)) lines.push_back(line);
  }
  return lines;
}

std::string LastLine(std::string text) {
  if (!text.empty()) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// The line by which rank 0 says after which step the run stops, and why.
std::string Stopping(int64_t step, const std::string& why) {
  return "stopping after step " + std::to_string(step) + " with a checkpoint" + why;
}
constexpr char kAgain[] = "; again in 5 s or later: at once, without";
constexpr char kTime[] = ": run.max_time or SLURM_JOB_END_TIME leaves no time for more";

// A run that was stopped has said so once, and has stopped there, with a checkpoint.
void ExpectStopped(const Job& job, const Outcome& outcome, const std::string& why) {
  const int64_t step = LastStep(job.run_dir());
  const std::string name = "step_" + std::to_string(step);
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
  EXPECT_EQ(LinesOf(outcome.out, "stopping"), Strings{Stopping(step, why)}) << outcome.Text();
  EXPECT_EQ(ReadFile(job.run_dir() + "/checkpoints/latest"), name);
  EXPECT_TRUE(LastLine(outcome.out)
                  .ends_with("stopped after step " + std::to_string(step) +
                             ": the run can go on from " + job.run_dir() + "/checkpoints/" + name))
      << outcome.Text();
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(ReadMetrics(job.run_dir()).back(), (Json{{"kind", "end"}, {"reason", "stopped"}}));
  const std::vector<Json> steps = OfKind(ReadMetrics(job.run_dir()), "step");
  ASSERT_EQ(steps.size(), static_cast<size_t>(step));
  EXPECT_EQ(steps.back()["step"], step);
}

// 200 moments: among steps, saves and evaluations, and where the last step is near.
TEST(Stop, AtAnyMomentNamesTheLastStep) {
  constexpr int kMoments = 200, kParts = 10;
  constexpr uint32_t kSeed = 8020;
  const bool all = testing::Everything();
  const Strings recipes[] = {
      {"train.steps=100000000", "checkpoint.every=null"},
      {"train.steps=100000000", "checkpoint.every=2"},
      {"train.steps=100000000", "data.valid={source: synthetic}", "eval={every: 2, steps: 4}"},
      {"train.steps=60", "checkpoint.every=null"},
  };
  for (int i = 0; i < kMoments; ++i) {
    if (!all && i % kParts != static_cast<int>(testing::Part(kParts))) continue;
    std::mt19937 random(kSeed + static_cast<uint32_t>(i));
    const int world = i / kParts % 2 == 0 ? 1 : 3, number = i / 20 % 2 == 0 ? SIGINT : SIGTERM;
    const Strings& settings = recipes[i / 40 % 4];
    const auto delay = std::chrono::microseconds(random() % 100000);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", signal " + std::to_string(i) + ", " +
                 std::to_string(delay.count()) + " us after a step, " + std::to_string(world) +
                 " ranks, " + settings.back());
    Job job;
    Process run =
        job.Start(world == 1 ? job.Flags(settings) : job.LaunchArguments(world, settings));
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 0; })) << run.Out();
    std::this_thread::sleep_for(delay);
    run.Signal(number);
    const Outcome outcome = run.Wait();
    if (outcome.code != 0) {
      ExpectStopped(job, outcome, kAgain);
    } else {  // It has come to its end.
      EXPECT_EQ(settings[0], "train.steps=60");
      EXPECT_EQ(LastStep(job.run_dir()), 60);
      EXPECT_EQ(LinesOf(outcome.out, "stopping"), Strings()) << outcome.Text();
    }
  }
}

// A rank that hears of a stop alone stops all, by the same step.
TEST(Stop, OfOneRankIsAStopOfAll) {
  Job job;
  Process run = job.Start(job.LaunchArguments(3, {"train.steps=100000000"}));
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 0; })) << run.Out();
  kill(RanksOf(run.pid()).at(2), SIGTERM);
  ExpectStopped(job, run.Wait(), kAgain);
}

// The peer is silent, so that the ranks cannot agree. A repeat changes nothing; a second signal
// after 5 s ends the rank, which names the newest checkpoint.
TEST(Stop, TheSecondSignalWaitsForNobody) {
  Job job;
  const Strings settings = {"train.steps=100000000", "checkpoint.every=1"};
  const int port = FreePort();
  Process first = job.Start(job.Flags(settings), Torchrun(0, 2, port));
  Process second = job.Start(job.Flags(settings), Torchrun(1, 2, port));
  const std::string latest = job.run_dir() + "/checkpoints/latest";
  ASSERT_TRUE(Eventually([&] { return !ReadFile(latest).empty(); })) << first.Out();
  second.Signal(SIGSTOP);
  for (const int number : {SIGINT, SIGTERM}) {
    first.Signal(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(2600));
    ASSERT_TRUE(first.Running()) << first.Out();
  }
  const auto begin = std::chrono::steady_clock::now();
  first.Signal(SIGINT);
  const Outcome outcome = first.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
  EXPECT_EQ(LastLine(outcome.out), "ended at once: the run can go on from " + job.run_dir() +
                                       "/checkpoints/" + ReadFile(latest));
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(LinesOf(outcome.out, "stopping"), Strings());  // Nothing is said that nobody knows.
  second.Signal(SIGKILL);
}

// Without a save so far 60 s are kept for one, so that a second is left.
TEST(Stop, ComesBeforeTheTimeIsOver) {
  Job job;
  const auto run = [&](int world, const Strings& more, const Variables& environment) {
    job.RunDir("run_" + std::to_string(world) + more[0]);
    Strings settings = more;
    settings.push_back("train.steps=100000000");
    return job
        .Start(world == 1 ? job.Flags(settings)
                          : job.LaunchArguments(world, settings, {"--max-restarts", "3"}),
               environment)
        .Wait();
  };
  ExpectStopped(job, run(3, {"run.max_time=61"}, {}), kTime);
  const std::string soon = std::to_string(std::time(nullptr) + 62);
  ExpectStopped(job, run(1, {"run.max_time=4h"}, {{"SLURM_JOB_END_TIME", soon}}), kTime);
  // Every start makes a step, so that a job that is started again and again gets on.
  ExpectStopped(job, run(1, {"run.max_time=1"}, {{"SLURM_JOB_END_TIME", "4000000000"}}), kTime);
  for (const int world : {1, 2}) {
    const Outcome wrong = run(world, {"run.name=w"}, {{"SLURM_JOB_END_TIME", "soon"}});
    EXPECT_EQ(wrong.code, 2) << wrong.Text();
    EXPECT_TRUE(Holds(wrong.err, "SLURM_JOB_END_TIME=soon: want seconds since 1970")) << wrong.err;
    EXPECT_FALSE(Exists(job.run_dir()));
  }
}

// Experts' loads are recorded once for the last step, whatever ends the run.
TEST(Stop, LeavesTheLoadsOfTheLastStep) {
  const Strings mixture = {
      "model={family: moe, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
      "vocab_size: 32, num_experts: 3, num_experts_per_tok: 2, moe_intermediate_size: 8}",
      "log.expert_loads_every=5"};
  const auto expect = [&](const Strings& more, bool signal, int code) {
    SCOPED_TRACE(more.back());
    Job job;
    Strings settings = mixture;
    settings.insert(settings.end(), more.begin(), more.end());
    Process run = job.Start(job.Flags(settings));
    if (signal) {
      ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 0; })) << run.Out();
      run.Signal(SIGTERM);
    }
    const Outcome outcome = run.Wait();
    EXPECT_EQ(outcome.code, code) << outcome.Text();
    std::vector<int64_t> want, got;
    const int64_t last = LastStep(job.run_dir());
    for (int64_t step = 1; step <= last; ++step) {
      if (step % 5 == 0 || step == last) want.push_back(step);
    }
    for (const Json& record : OfKind(ReadMetrics(job.run_dir()), "experts")) {
      got.push_back(record["step"]);
      EXPECT_EQ(record["loads"].size(), 2u);
    }
    EXPECT_EQ(got, want);
  };
  expect({"train.steps=7"}, /*signal=*/false, 0);
  expect({"train.steps=100000000"}, /*signal=*/true, 75);
  expect({"train.steps=100000000", "run.max_time=1"}, /*signal=*/false, 75);
  expect({"optimizer.lr=0", "data.valid={source: synthetic}", "train.steps=60",
          "eval={every: 2, steps: 1, stop_after: 1}"},
         /*signal=*/false, 0);
  // A step whose numbers are not finite ends the run.
  expect({"optimizer={name: sgd, lr: 1.0e+30}", "train.grad_clip=0"}, /*signal=*/false, 7);
}

}  // namespace
}  // namespace fsdp::e2e
