// The records of a run are taken from under it, at random moments: it ends with exit 5 and one
// error at its next record, and its checkpoints stay.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Harm {
  const char* name;
  std::function<void(const std::string& run, const std::string& metrics)> work;
  const char* want;  // In what is said, where nothing else can be.
  bool takes_checkpoints = false;
};

const std::vector<Harm>& Harms() {
  static const std::vector<Harm> harms = {
      {"metrics.jsonl removed", [](auto&, auto& m) { fs::remove(m); }, "metrics.jsonl: is gone"},
      // A save may be making files in it.
      {"the run directory removed",
       [](auto& run, auto&) {
         std::error_code error;
         do {
           fs::remove_all(run, error);
         } while (error);
       },
       nullptr, true},
      {"metrics.jsonl replaced",
       [](auto& run, auto& m) {
         fs::copy_file(m, run + "/copy");
         fs::rename(run + "/copy", m);
       },
       "metrics.jsonl: is another file by now"},
      // The file keeps 10 bytes, or one record more if it came between two looks.
      {"metrics.jsonl cut", [](auto&, auto& m) { fs::resize_file(m, 10); },
       " that were written: it was cut while it was written"},
      {"the event files removed",
       [](auto& run, auto&) {
         for (const auto& entry : fs::directory_iterator(run)) {
           const std::string name = entry.path().filename();
           if (name.starts_with("events.out.tfevents.")) fs::remove(entry.path());
         }
       },
       ": is gone"},
      {"the logs removed", [](auto& run, auto&) { fs::remove_all(run + "/logs"); },
       "/logs/rank_0.log: is gone"},
      {"the run directory renamed", [](auto& run, auto&) { fs::rename(run, run + ".elsewhere"); },
       nullptr, true},
  };
  return harms;
}

TEST(Removed, DuringARunIsSaidAtTheNextRecord) {
  constexpr uint64_t kSeed = 20260802;
  constexpr int kRounds = 3;
  std::mt19937_64 random(kSeed);
  double longest = 0;
  for (int round = 0; round < kRounds * static_cast<int>(Harms().size()); ++round) {
    const Harm& harm = Harms()[static_cast<size_t>(round) % Harms().size()];
    const int world = 1 + round / static_cast<int>(Harms().size()) % 2;
    SCOPED_TRACE(std::string(harm.name) + ", round " + std::to_string(round) + ", seed " +
                 std::to_string(kSeed));
    Job job;
    const Strings settings = {"train.steps=100000000", "checkpoint.every=15",
                              "checkpoint.keep_last=2"};
    Process run = world == 1 ? job.Start(job.Flags(settings))
                             : job.Start(job.LaunchArguments(world, settings));
    ASSERT_TRUE(Eventually([&] { return Exists(job.run_dir() + "/checkpoints/latest"); }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
    const std::string metrics = job.run_dir() + "/metrics.jsonl";
    harm.work(job.run_dir(), metrics);
    const auto begin = Clock::now();
    const Outcome outcome = run.Wait();
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
    ASSERT_EQ(outcome.code, 5) << outcome.Text();
    int said = 0;  // By rank 0: the other one only hears of it.
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) {
      if (world > 1 && !line.starts_with("[0] ")) continue;
      ++said;
      if (harm.want != nullptr) {
        EXPECT_NE(line.find(harm.want), std::string::npos) << line;
      }
    }
    EXPECT_EQ(said, 1) << outcome.err;
    if (harm.takes_checkpoints) continue;
    const Outcome verified = Call({"checkpoint", "verify", job.run_dir()});
    EXPECT_EQ(verified.code, 0) << verified.Text();
  }
  std::printf("seed %llu: %d runs, all ended with 5; the longest %.2f s later\n",
              static_cast<unsigned long long>(kSeed), kRounds * static_cast<int>(Harms().size()),
              longest);
}

// The end of a run is a record, too: one that has nothing else to write does not say that all is
// well.
TEST(Removed, BeforeTheEndIsSaid) {
  for (const std::string name : {"/metrics.jsonl", "/logs"}) {
    Outcome outcome;
    do {
      Job job;
      Process run = job.Start(job.Flags({"train.steps=100000000", "log.every=100000000"}));
      // The last thing that is written before the steps begin.
      ASSERT_TRUE(
          Eventually([&] { return !ReadFile(job.run_dir() + "/provenance.json").empty(); }));
      fs::remove_all(job.run_dir() + name);
      run.Signal(SIGTERM);
      outcome = run.Wait();
    } while (outcome.out.find("before the first step") != std::string::npos);  // It came too early.
    EXPECT_EQ(outcome.code, 5) << outcome.Text();
    EXPECT_NE(outcome.err.find(": is gone"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace fsdp::e2e
