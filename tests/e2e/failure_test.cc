// Ranks that die or fall silent: everybody else ends soon, with one error that says who it was.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

// The stderr lines of one rank, as launch passes them on.
Strings LinesOf(int rank, const std::string& err) {
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  Strings lines;
  std::istringstream in(err);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

std::string RankLog(const Job& job, int rank) {
  return ReadFile(job.run_dir() + "/logs/rank_" + std::to_string(rank) + ".log");
}

// A run that goes on until something happens to it.
struct EndlessRun {
  explicit EndlessRun(int world, Strings settings = {}, const Strings& launch_flags = {})
      : world(world) {
    settings.push_back("train.steps=100000000");
    settings.push_back("log.every=10");
    process.emplace(job.LaunchArguments(world, settings, launch_flags), Options());
    EXPECT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 20; })) << process->Out();
    ranks = RanksOf(process->pid());
    EXPECT_EQ(ranks.size(), static_cast<size_t>(world));
  }
  Process::Options Options() const { return {{}, "", job.dir().path()}; }

  Job job;
  int world;
  std::optional<Process> process;
  std::map<int, pid_t> ranks;
};

TEST(KilledRank, EndsTheOthersWithItsName) {
  for (const int victim : {0, 1, 2}) {
    EndlessRun run(3);
    ASSERT_EQ(kill(run.ranks.at(victim), SIGKILL), 0);
    const Outcome outcome = run.process->Wait();
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.Text();
    EXPECT_FALSE(outcome.timed_out);
    const std::string name = "rank " + std::to_string(victim);
    EXPECT_NE(outcome.err.find("launch: " + name + " (pid "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("failed first: killed by SIGKILL"), std::string::npos);
    EXPECT_EQ(outcome.err.find("still there"), std::string::npos) << outcome.err;  // By themselves.
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const Strings lines = LinesOf(rank, outcome.err);
      ASSERT_EQ(lines.size(), 1u) << outcome.err;
      EXPECT_NE(lines[0].find(name), std::string::npos) << lines[0];
      EXPECT_NE(RankLog(run.job, rank).find(lines[0]), std::string::npos);
    }
    ReadMetrics(run.job.run_dir());  // All lines are whole.
  }
}

// The launcher's last line, whoever it was that died.
TEST(KilledRank, LeavesARunThatSaysFromWhereItGoesOn) {
  for (const char* every : {"20", "null"}) {
    EndlessRun run(2, {"checkpoint.every=" + std::string(every)});
    const std::string checkpoints = run.job.run_dir() + "/checkpoints/";
    const bool saves = every != std::string("null");
    ASSERT_TRUE(Eventually([&] { return !saves || Exists(checkpoints + "latest"); }));
    ASSERT_EQ(kill(run.ranks.at(1), SIGKILL), 0);
    const Outcome outcome = run.process->Wait();
    const std::string last = outcome.err.substr(outcome.err.rfind("launch: "));
    const std::string newest = ReadFile(checkpoints + "latest");
    EXPECT_EQ(last, saves ? "launch: the run can go on from " + checkpoints +
                                newest.substr(0, newest.find('\n')) + "\n"
                          : "launch: there is no checkpoint to go on from\n")
        << outcome.err;
  }
}

// Each rank's own exit code: launch shows the first one's only.
TEST(KilledRank, TheOthersExitWith6) {
  Job job;
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(
        std::make_unique<Process>(job.Flags({"train.steps=100000000", "log.every=10"}),
                                  Process::Options{Torchrun(rank, 3, port), "", job.dir().path()}));
  }
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 20; }));
  ranks[1]->Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    const Outcome outcome = ranks[static_cast<size_t>(rank)]->Wait();
    EXPECT_EQ(outcome.code, 6) << outcome.Text();
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find("rank 1"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(ranks[1]->Wait().code, 128 + SIGKILL);
  EXPECT_EQ(ReadMetrics(job.run_dir()).back()["kind"], "end");
}

TEST(KilledRank, WhileItStarts) {
  for (const int delay_ms : {0, 20, 50, 100, 200}) {
    Job job;
    Process run = job.Start(job.LaunchArguments(3, {"train.steps=100000000"}, {"--grace", "60"}));
    ASSERT_TRUE(Eventually([&] { return RanksOf(run.pid()).count(1) > 0; }));
    const pid_t victim = RanksOf(run.pid()).at(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    const Outcome outcome = run.Wait();
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.Text();
    EXPECT_NE(outcome.err.find("launch: rank 1 (pid "), std::string::npos) << outcome.err;
    // Who waits for a rank that will never come is told to stop, and does.
    EXPECT_EQ(outcome.err.find("after SIGTERM"), std::string::npos) << outcome.err;
    ReadMetrics(job.run_dir());
  }
}

TEST(MissingRank, IsWaitedForAsLongAsTheRecipeSays) {
  Job job;
  // Rank 1 of 2 never comes; rank 0 does not wait longer than it was told.
  Process alone = job.Start(job.Flags({"run.timeout_s=1"}), Torchrun(0, 2, FreePort()));
  const Outcome outcome = alone.Wait();
  EXPECT_EQ(outcome.code, 6) << outcome.Text();
  EXPECT_NE(outcome.err.find("rank 1"), std::string::npos) << outcome.err;
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(SilentRank, EndsTheOthersAfterTheTimeout) {
  for (const int victim : {0, 1}) {
    EndlessRun run(3, {"run.timeout_s=3"}, {"--grace", "2"});
    ASSERT_EQ(kill(run.ranks.at(victim), SIGSTOP), 0);
    const Outcome outcome = run.process->Wait();
    EXPECT_EQ(outcome.code, 6) << outcome.Text();
    const std::string name = "rank " + std::to_string(victim);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const Strings lines = LinesOf(rank, outcome.err);
      ASSERT_EQ(lines.size(), 1u) << outcome.err;
      EXPECT_NE(lines[0].find(name + " has not arrived"), std::string::npos) << lines[0];
      EXPECT_NE(lines[0].find("3 s"), std::string::npos) << lines[0];
      // And where this one was: "; rank 2 stood at step 31, backward of unit 1 (...), op ...".
      const size_t stood = lines[0].find("; rank " + std::to_string(rank) + " stood at step ");
      ASSERT_NE(stood, std::string::npos) << lines[0];
      EXPECT_NE(lines[0].find(", op ", stood), std::string::npos) << lines[0];
      EXPECT_NE(RankLog(run.job, rank).find(lines[0]), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
