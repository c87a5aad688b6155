// Training state on a disk that is missing, full, fails, or changes it: one error, and nothing is
// lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

std::string SpillTo(const std::string& directory) {
  return "fsdp.cpu_offload={optimizer: true, spill: " + directory + "}";
}

std::string Latest(const Job& job) { return ReadFile(job.run_dir() + "/checkpoints/latest"); }

void ExpectError(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 5) << outcome.Text();
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.Text();
}

// The steps and the last checkpoint of a run that had no such trouble.
void ExpectUnharmed(Job& job, int world, int steps, Strings settings = {}) {
  const std::string got = job.run_dir();
  const std::string last = "/checkpoints/step_" + std::to_string(steps) + "/rank_0.safetensors";
  const std::string want = job.RunDir("unharmed");
  settings.push_back("train.steps=" + std::to_string(steps));
  settings.emplace_back("checkpoint={every: 2, keep_last: 0}");
  const Outcome outcome = job.Launch(world, settings);
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  ASSERT_TRUE(Exists(want + last));
  EXPECT_TRUE(ReadFile(got + last) == ReadFile(want + last)) << "other bytes";
}

TEST(SpillDirectory, ThatCannotBeUsedLosesNothing) {
  for (const int world : {1, 2}) {
    Job job;
    const auto until = [&](int steps, const std::string& more) {
      const Strings settings = {"train.steps=" + std::to_string(steps), more,
                                "checkpoint={every: 2, keep_last: 0}"};
      return job.Launch(world, settings);
    };
    ASSERT_EQ(until(4, "log.every=1").code, 0);
    const std::string file = job.dir().Write("file", "x");
    const std::string missing = job.dir() / "none";
    const Outcome refused = until(6, SpillTo(missing));
    ExpectError(refused, missing + ": cannot take ");
    ExpectError(refused, "of training state: No such file or directory");
    EXPECT_EQ(refused.err.find(missing), refused.err.rfind(missing)) << "said twice";
    ExpectError(until(6, SpillTo(file)), "of training state: Not a directory");
    EXPECT_EQ(ReadFile(file), "x");
    EXPECT_EQ(Latest(job), "step_4");
    ASSERT_EQ(until(6, "log.every=1").code, 0);
    ExpectUnharmed(job, world, 6);
  }
}

TEST(SpillDirectory, IsLookedAtByADryRun) {
  Job job;
  const std::string disk = job.dir() / "disk";
  const auto dry_run = [&](const Strings& settings) {
    Strings arguments = job.Flags(settings);
    arguments.push_back("--dry-run");
    return Call(arguments);
  };
  const Strings activations = {"fsdp.cpu_offload.spill=" + disk, "train.activation_offload=spill"};
  ExpectError(dry_run({SpillTo(disk)}), "of training state: No such file or directory");
  ExpectError(dry_run(activations), "of activations: No such file or directory");
  fs::create_directory(disk);
  for (const Strings& settings : {Strings{SpillTo(disk)}, activations}) {
    const Outcome outcome = dry_run(settings);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
  }
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(SpillDirectory, ThatIsFullIsSaidBeforeAnythingRuns) {
  Job job;
  const std::string disk = job.dir() / "disk";
  fs::create_directory(disk);
  // No file grows beyond 64 KiB, as on a full disk.
  Strings arguments = {"--fsize=65536", BinaryPath()};
  for (const std::string& flag : job.Flags({SpillTo(disk), "model.hidden_size=64"})) {
    arguments.push_back(flag);
  }
  Process run(arguments, {.environment = {},
                          .directory = "",
                          .output_directory = job.dir().path(),
                          .program = "prlimit"});
  ExpectError(run.Wait(), disk + ": cannot take ");
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_EQ(LastStep(job.run_dir()), 0);
  ASSERT_EQ(job.Launch(1, {SpillTo(disk)}).code, 0);
}

// Forbids writes behind the first quarter of the process's spilled file. Its second half is for
// snapshots.
void FillDisk(pid_t pid, const std::string& disk) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error).string().rfind(disk, 0) != 0) continue;
    struct stat status;
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    const rlim_t quarter = static_cast<rlim_t>(status.st_size) / 4;
    const rlimit limit = {quarter, quarter};
    ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
    ++files;
  }
  ASSERT_EQ(files, 1);
}

TEST(Spill, ADiskThatFailsWhileTrainingLeavesTheLastCheckpoint) {
  for (const int world : {1, 2}) {
    Job job;
    const std::string disk = fs::canonical(job.dir().path()).string() + "/disk";
    fs::create_directory(disk);
    const auto settings = [&](int64_t steps, int every) {
      return Strings{"train.steps=" + std::to_string(steps), SpillTo(disk), "model.hidden_size=64",
                     "checkpoint={keep_last: 0, every: " + std::to_string(every) + "}"};
    };
    ASSERT_EQ(job.Launch(world, settings(4, 2)).code, 0);
    Process run = job.Start(job.LaunchArguments(world, settings(100000000, 50000000)));
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 6; })) << run.Out();
    FillDisk(RanksOf(run.pid()).at(world - 1), disk);
    const Outcome outcome = run.Wait();
    ExpectError(outcome, disk + " (training state, spilled): bytes ");
    EXPECT_NE(outcome.err.find("cannot be written: "), std::string::npos) << outcome.Text();
    EXPECT_TRUE(fs::is_empty(disk));

    EXPECT_EQ(Latest(job), "step_4");
    const Outcome resumed = job.Launch(world, settings(8, 2));
    ASSERT_EQ(resumed.code, 0) << resumed.Text();
    ExpectUnharmed(job, world, 8, {"model.hidden_size=64"});
  }
}

// Another process turns bits of what the rank has spilled, all over the file, until it ends.
void SpoilDisk(Process& run, pid_t pid, const std::string& disk) {
  std::string spilled;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error).string().rfind(disk, 0) == 0) spilled = entry.path();
  }
  const int file = ::open(spilled.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0) << spilled;
  struct stat status;
  ASSERT_EQ(::fstat(file, &status), 0);
  std::mt19937_64 random(20261124);
  EXPECT_TRUE(Eventually([&] {
    const auto at = static_cast<off_t>(random() % static_cast<uint64_t>(status.st_size));
    unsigned char byte = 0;
    EXPECT_EQ(::pread(file, &byte, 1, at), 1);
    byte ^= 1;
    EXPECT_EQ(::pwrite(file, &byte, 1, at), 1);
    return !run.Running();
  }));
  ::close(file);
}

TEST(Spill, ADiskThatChangesABitLeavesTheLastCheckpoint) {
  constexpr int kWorld = 2;
  Job job;
  const std::string disk = fs::canonical(job.dir().path()).string() + "/disk";
  fs::create_directory(disk);
  const auto settings = [&](int64_t steps, int every) {
    return Strings{"train.steps=" + std::to_string(steps), SpillTo(disk), "model.hidden_size=64",
                   "checkpoint={keep_last: 0, every: " + std::to_string(every) + "}"};
  };
  ASSERT_EQ(job.Launch(kWorld, settings(4, 2)).code, 0);
  Process run = job.Start(job.LaunchArguments(kWorld, settings(100000000, 50000000)));
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 6; })) << run.Out();
  SpoilDisk(run, RanksOf(run.pid()).at(1), disk);
  const Outcome outcome = run.Wait();
  ExpectError(outcome, disk + " (training state, spilled): bytes ");
  EXPECT_NE(outcome.err.find(", cannot be read: the disk does not return what was written there"),
            std::string::npos)
      << outcome.Text();
  EXPECT_EQ(Latest(job), "step_4");
  const Outcome resumed = job.Launch(kWorld, settings(8, 2));
  ASSERT_EQ(resumed.code, 0) << resumed.Text();
  ExpectUnharmed(job, kWorld, 8, {"model.hidden_size=64"});
}

}  // namespace
}  // namespace fsdp::e2e
