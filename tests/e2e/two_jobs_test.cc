// Two jobs in one run directory: the second ends with exit code 5 and has changed nothing, whenever
// it comes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "tests/e2e/run_binary.h"
#include "tests/testing/everything.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

Strings Endless() { return {"train.steps=100000000", "checkpoint.every=10", "log.every=1"}; }

Strings Arguments(const Job& job, int world) {
  return world == 1 ? job.Flags(Endless()) : job.LaunchArguments(world, Endless());
}

// Each file's and directory's time of last change, and its size.
std::map<std::string, std::string> Snapshot(const std::string& directory) {
  std::map<std::string, std::string> all;
  const auto add = [&](const std::string& path) {
    struct stat status;
    if (lstat(path.c_str(), &status) != 0) return;
    all[path] = std::to_string(status.st_mtim.tv_sec) + "." +
                std::to_string(status.st_mtim.tv_nsec) + " " + std::to_string(status.st_size);
  };
  add(directory);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) add(entry.path());
  return all;
}

TEST(TwoJobs, TheSecondNamesTheFirstAndTouchesNothing) {
  for (const int world : {1, 2}) {
    Job job;
    Process first = job.Start(Arguments(job, world));
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 20; })) << first.Out();
    const pid_t holder = world == 1 ? first.pid() : RanksOf(first.pid()).at(0);
    const pid_t other = world == 1 ? 0 : RanksOf(first.pid()).at(1);
    ASSERT_EQ(kill(holder, SIGSTOP), 0);  // Any change from now on is the second's.
    if (other != 0) {
      ASSERT_EQ(kill(other, SIGSTOP), 0);
    }
    // A temporary directory of the first: what a save would find left and remove.
    const std::string left = job.run_dir() + "/checkpoints/step_7.tmp";
    fs::create_directory(left);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto before = Snapshot(job.run_dir());
    const Outcome second = Call(Arguments(job, world));
    EXPECT_EQ(second.code, 5) << second.Text();
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    const std::string name = "process " + std::to_string(holder) + " on " + host + ", started 20";
    const size_t at = second.err.find(name);
    EXPECT_NE(at, std::string::npos) << second.err;
    EXPECT_EQ(second.err.find(name, at + 1), std::string::npos) << second.err;  // Once.
    if (world > 1) {
      EXPECT_NE(second.err.find("launch: rank 0 (pid "), std::string::npos) << second.err;
      EXPECT_NE(second.err.find("failed first: exit code 5"), std::string::npos) << second.err;
    }
    EXPECT_EQ(Snapshot(job.run_dir()), before);
    ASSERT_EQ(kill(holder, SIGCONT), 0);
    if (other != 0) {
      ASSERT_EQ(kill(other, SIGCONT), 0);
    }
    first.Signal(SIGTERM);
    EXPECT_EQ(first.Wait().code, 75);
  }
}

// Each rank's own exit code: launch shows one alone.
TEST(TwoJobs, AllRanksOfTheSecondExitWith5) {
  Job job;
  Process first = job.Start(Arguments(job, 1));
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 1; })) << first.Out();
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Process>(
        job.Flags(Endless()), Process::Options{Torchrun(rank, 3, port), "", job.dir().path()}));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome outcome = ranks[static_cast<size_t>(rank)]->Wait();
    EXPECT_EQ(outcome.code, 5) << outcome.Text();
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), rank == 0 ? 1 : 0)
        << outcome.err;
  }
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait().code, 75);
}

// Whatever the moment, one goes on, and what it leaves is whole.
TEST(TwoJobs, OfPairsAtRandomMomentsOneSurvives) {
  constexpr int kPairs = 4;
  const uint32_t kSeed = 8001 + testing::Part(180);
  std::mt19937 random(kSeed);
  for (int i = 0; i < kPairs; ++i) {
    const int world = 1 + i % 2;
    const auto apart = std::chrono::milliseconds(random() % 700);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", pair " + std::to_string(i) + ", " +
                 std::to_string(apart.count()) + " ms apart");
    Job job;
    Process first = job.Start(Arguments(job, world));
    std::this_thread::sleep_for(apart);
    Process second = job.Start(Arguments(job, world));
    ASSERT_TRUE(Eventually([&] { return !first.Running() || !second.Running(); }));
    Process& loser = first.Running() ? second : first;
    Process& survivor = first.Running() ? first : second;
    const Outcome lost = loser.Wait();
    EXPECT_EQ(lost.code, 5) << lost.Text();
    EXPECT_NE(lost.err.find("another job trains in this directory: process "), std::string::npos);
    const int64_t seen = LastStep(job.run_dir());
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= seen + 25; }));
    survivor.Signal(SIGTERM);
    const Outcome stopped = survivor.Wait();
    EXPECT_EQ(stopped.code, 75) << stopped.Text();
    const std::vector<Json> steps = OfKind(ReadMetrics(job.run_dir()), "step");
    for (size_t s = 0; s < steps.size(); ++s) ASSERT_EQ(steps[s]["step"], s + 1);
    EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "run").size(), 1u);
    for (const auto& entry : fs::directory_iterator(job.run_dir() + "/checkpoints")) {
      if (!entry.is_directory()) continue;
      const Outcome verified = Call({"checkpoint", "verify", entry.path()});
      EXPECT_EQ(verified.code, 0) << verified.Text();
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
