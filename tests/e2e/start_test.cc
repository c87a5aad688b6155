// Signals, mistakes and kills before a run's first step: none of them stands in the way of the next
// start.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr char kNone[] =
    "stopped by a signal before the first step: there is no checkpoint to go on from\n";

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string LastLine(std::string text) {
  if (!text.empty()) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// Whether the process catches or holds back SIGTERM: from here on it is not its end.
bool IsReady(pid_t pid) {
  std::istringstream status(ReadFile("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(status, line);) {
    const bool set = line.starts_with("SigBlk:") || line.starts_with("SigCgt:");
    if (set && (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1)) % 2 == 1) return true;
  }
  return false;
}

Strings Endless() { return {"train.steps=100000000", "checkpoint.every=100"}; }

// Without a pause: some starts are over in milliseconds.
bool Soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// From when a rank hears signals until its first step: 10 ms or a second, as machines go.
std::chrono::microseconds TimeOfAStart() {
  Job job;
  Process run = job.Start(job.Flags(Endless()));
  EXPECT_TRUE(Soon([&] { return IsReady(run.pid()); }));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Soon([&] { return Holds(run.Out(), "\nstep "); }));
  const auto end = std::chrono::steady_clock::now();
  run.Signal(SIGTERM);
  run.Wait();
  return std::chrono::duration_cast<std::chrono::microseconds>(end - begin);
}

TEST(Signal, AtAnyMomentOfAStartIsAStop) {
  constexpr int kSignals = 12;
  constexpr uint32_t kSeed = 8010;
  std::mt19937 random(kSeed);
  const std::chrono::microseconds start = TimeOfAStart();
  int early = 0;
  // On a loaded machine starts are faster than they were, and more are needed to meet some of them.
  for (int i = 0; i < kSignals || (early < 4 && i < 3 * kSignals); ++i) {
    const int world = 1 + i % 3;
    const int number = i % 2 == 0 ? SIGTERM : SIGINT;
    // While a rank alone would start, some at once. Later ones: stop_test.
    const int64_t within = (start.count() >> std::min(i / 4, 4)) + 1;
    const auto delay = std::chrono::microseconds(random() % within);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", signal " + std::to_string(i) + ", after " +
                 std::to_string(delay.count()) + " us, " + std::to_string(world) + " ranks");
    Job job;
    Process run =
        job.Start(world == 1 ? job.Flags(Endless()) : job.LaunchArguments(world, Endless()));
    ASSERT_TRUE(Soon([&] { return IsReady(run.pid()); }));
    std::this_thread::sleep_for(delay);
    run.Signal(number);
    const Outcome outcome = run.Wait();
    EXPECT_EQ(outcome.code, 75) << outcome.Text();
    const std::string last = LastLine(outcome.out);
    const std::string latest = ReadFile(job.run_dir() + "/checkpoints/latest");
    if (latest.empty()) {
      ++early;
      EXPECT_TRUE(Holds(outcome.out, kNone)) << outcome.Text();
    } else {
      EXPECT_TRUE(
          last.ends_with(": the run can go on from " + job.run_dir() + "/checkpoints/" + latest))
          << outcome.Text();
    }
    // The next start goes on from where it was, from the beginning too.
    const int64_t steps = LastStep(job.run_dir()) + 3;
    const Strings rest = {"train.steps=" + std::to_string(steps)};
    const Outcome next = world == 1 ? job.Train(rest) : job.Launch(world, rest);
    EXPECT_EQ(next.code, 0) << next.Text();
    EXPECT_FALSE(Exists(job.run_dir() + "/metrics.1.jsonl"));
    const std::vector<Json> records = OfKind(ReadMetrics(job.run_dir()), "step");
    ASSERT_EQ(records.size(), static_cast<size_t>(steps));
    for (size_t s = 0; s < records.size(); ++s) ASSERT_EQ(records[s]["step"], s + 1);
  }
  EXPECT_GE(early, 4);  // Or the moments say nothing about starts.
}

// In the constructors of libraries. A command that takes no signals is ended by them.
TEST(Signal, BeforeMainIsAStop) {
  Process::Options options;
  options.environment = {{"LD_PRELOAD", std::filesystem::absolute("tests/e2e/term_probe.so")}};
  Job job;
  options.output_directory = job.dir().path();
  const auto end_of = [&](const Strings& arguments) { return Process(arguments, options).Wait(); };
  for (const Strings& arguments : {job.LaunchArguments(1, Endless()),
                                   job.LaunchArguments(2, Endless()), job.Flags(Endless())}) {
    const Outcome outcome = end_of(arguments);
    EXPECT_EQ(outcome.code, 75) << outcome.Text();
  }
  EXPECT_EQ(end_of({"models"}).code, 128 + SIGTERM);
}

// A peer that never comes does not keep a rank from stopping.
TEST(Signal, WhileWaitingForTheOtherRanks) {
  for (const int rank : {0, 1}) {
    Job job;
    Process alone = job.Start(job.Flags(Endless()), Torchrun(rank, 2, FreePort()));
    ASSERT_TRUE(Eventually([&] { return IsReady(alone.pid()); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    alone.Signal(SIGTERM);
    const Outcome outcome = alone.Wait();
    EXPECT_EQ(outcome.code, 75) << outcome.Text();
    EXPECT_EQ(outcome.out, rank == 0 ? kNone : "");
    EXPECT_EQ(outcome.err, "");
    EXPECT_FALSE(Exists(job.run_dir()));
  }
}

// Connections of this machine to or from a port, each end counted.
int64_t EstablishedEnds(int port) {
  char hex[8];
  std::snprintf(hex, sizeof(hex), ":%04X", port);
  int64_t ends = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(ReadFile(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      ends += state == "01" && (local.ends_with(hex) || remote.ends_with(hex));
    }
  }
  return ends;
}

// Ranks that have met stop together, whichever was told to.
TEST(Signal, ToOneRankStopsThoseThatItHasMet) {
  for (const int told : {0, 1}) {
    Job job;
    const int port = FreePort();  // The last of three ranks never comes.
    Process first = job.Start(job.Flags(Endless()), Torchrun(0, 3, port));
    Process second = job.Start(job.Flags(Endless()), Torchrun(1, 3, port));
    ASSERT_TRUE(Eventually([&] { return EstablishedEnds(port) >= 4; }));
    (told == 0 ? first : second).Signal(SIGTERM);
    const Outcome outcome = first.Wait(), other = second.Wait();
    EXPECT_EQ(outcome.code, 75) << outcome.Text();
    EXPECT_EQ(outcome.out, kNone);
    EXPECT_EQ(other.code, 75) << other.Text();
    EXPECT_EQ(other.Text(), "exit code 75\nstdout:\nstderr:\n");
  }
}

// And those that have yet to meet: who was told says it to the others, and so does the launcher.
TEST(Signal, ToOneRankInItsFirstMillisecondsStopsAll) {
  constexpr uint32_t kSeed = 8012;
  std::mt19937 random(kSeed);
  const Strings settings = {"train.steps=100000000", "checkpoint.every=null", "run.timeout_s=600"};
  for (int i = 0; i < 12; ++i) {
    const int told = i % 3;
    const auto delay = std::chrono::microseconds(random() % 15000);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", signal " + std::to_string(i) + ", after " +
                 std::to_string(delay.count()) + " us");
    Job job;
    Process run = job.Start(job.LaunchArguments(3, settings));
    ASSERT_TRUE(Soon([&] { return RanksOf(run.pid()).count(told) > 0; }));
    const pid_t rank = RanksOf(run.pid()).at(told);
    std::this_thread::sleep_for(delay);
    kill(rank, SIGTERM);
    const Outcome outcome = run.Wait();
    EXPECT_EQ(outcome.code, 75) << outcome.Text();
    EXPECT_EQ(outcome.err, "");
  }
  for (const int told : {0, 1}) {  // Without a launcher, from when a rank hears of it.
    Job job;
    const int port = FreePort();
    std::unique_ptr<Process> ranks[2];
    const auto start = [&](int rank) {
      ranks[rank].reset(new Process(job.Start(job.Flags(settings), Torchrun(rank, 2, port))));
    };
    start(told);
    ASSERT_TRUE(Soon([&] { return IsReady(ranks[told]->pid()); }));
    ranks[told]->Signal(SIGTERM);
    start(1 - told);
    for (const auto& rank : ranks) {
      const Outcome outcome = rank->Wait();
      EXPECT_EQ(outcome.code, 75) << outcome.Text();
    }
  }
}

TEST(Signal, BeforeTheFirstStepOfAResumeNamesTheCheckpoint) {
  Job job;
  ASSERT_EQ(job.Train({"train.steps=4", "checkpoint.every=100"}).code, 0);
  Process waiting = job.Start(job.Flags(Endless()), Torchrun(0, 2, FreePort()));
  ASSERT_TRUE(Eventually([&] { return IsReady(waiting.pid()); }));
  waiting.Signal(SIGTERM);
  const Outcome outcome = waiting.Wait();
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
  EXPECT_EQ(outcome.out, "stopped by a signal before the first step: the run can go on from " +
                             job.run_dir() + "/checkpoints/step_4\n");
}

// A start that failed leaves no run: another recipe may begin there, even by `none`.
void ExpectFreeToBegin(const Job& job) {
  const Outcome next = job.Train({"checkpoint.resume=none", "optimizer.lr=0.5", "train.steps=3"});
  EXPECT_EQ(next.code, 0) << next.Text();
  const std::vector<Json> steps = OfKind(ReadMetrics(job.run_dir()), "step");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0]["step"], 1);
}

TEST(FailedStart, LeavesNoRun) {
  struct Case {
    const char* what;
    Strings settings;
    int code;
  };
  const Case cases[] = {
      {"too large", {"model.hidden_size=65536", "model.num_attention_heads=1024"}, 3},
      {"no data", {"data.train={source: text, paths: [/nonexistent]}", "model.vocab_size=256"}, 4},
      {"no such checkpoint", {"checkpoint.resume=7"}, 5},
      {"not finite at once", {"optimizer={name: sgd, lr: 1.0e+30}", "train.grad_clip=0"}, 7},
  };
  for (const Case& c : cases) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(c.what + std::string(", ranks: ") + std::to_string(world));
      Job job;
      const Outcome failed = world == 1 ? job.Train(c.settings) : job.Launch(world, c.settings);
      EXPECT_EQ(failed.code, c.code) << failed.Text();
      if (world > 1) {  // Told by one of them, and launch says by which.
        const char* const teller = Holds(failed.err, "[0] ") ? "0" : "1";
        EXPECT_FALSE(Holds(failed.err, "[0] ") && Holds(failed.err, "[1] ")) << failed.err;
        EXPECT_TRUE(Holds(failed.err, std::string("launch: rank ") + teller + " ")) << failed.err;
      }
      if (c.code != 7) {
        EXPECT_FALSE(Exists(job.run_dir()));
      }
      ExpectFreeToBegin(job);
    }
  }
}

TEST(FailedStart, AMissingPeerLeavesNoRun) {
  Job job;
  EXPECT_EQ(job.Train({"run.timeout_s=1"}, Torchrun(0, 2, FreePort())).code, 6);
  ExpectFreeToBegin(job);
}

TEST(FailedStart, AKillBeforeTheFirstCheckpointLeavesNoRun) {
  constexpr int kKills = 12;
  constexpr uint32_t kSeed = 8011;
  std::mt19937 random(kSeed);
  Job job;
  for (int i = 0; i < kKills; ++i) {
    const auto delay = std::chrono::microseconds(random() % 800000);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", kill " + std::to_string(i) + ", after " +
                 std::to_string(delay.count()) + " us");
    // Another recipe each time.
    Process run = job.Start(job.Flags({"train.steps=100000000", "checkpoint.every=null",
                                       "optimizer.lr=0.0" + std::to_string(1 + i)}));
    if (i % 2 == 1) {  // Others are killed before there is anything.
      ASSERT_TRUE(Eventually([&] { return Holds(run.Out(), "\nstep ") || !run.Running(); }))
          << run.Out();
    }
    std::this_thread::sleep_for(delay);
    run.Signal(SIGKILL);
    const Outcome killed = run.Wait();
    EXPECT_EQ(killed.code, 128 + SIGKILL) << killed.Text();
  }
  ExpectFreeToBegin(job);
  // Steps that were recorded are kept, with the recipe that they are of.
  for (int i = 1; i <= kKills / 2; ++i) {
    const std::string kept = job.run_dir() + "/metrics." + std::to_string(i);
    EXPECT_TRUE(Exists(kept + ".jsonl")) << i;
    EXPECT_TRUE(Exists(kept + ".recipe.yaml")) << i;
  }
}

// Nothing could be lost: its records are kept beside those of the next, whose recipe is another.
TEST(FinishedRun, WithoutACheckpointRefusesNothing) {
  Job job;
  ASSERT_EQ(job.Train({"checkpoint.every=null"}).code, 0);
  const std::string records = ReadFile(job.run_dir() + "/metrics.jsonl");
  const Outcome again =
      job.Train({"checkpoint.every=null", "checkpoint.resume=none", "optimizer.lr=0.02"});
  EXPECT_EQ(again.code, 0) << again.Text();
  EXPECT_EQ(ReadFile(job.run_dir() + "/metrics.1.jsonl"), records);
  EXPECT_TRUE(Exists(job.run_dir() + "/metrics.1.recipe.yaml"));
}

// `fsdp-train ... | head -1`: the reader takes a line and goes.
TEST(Console, WithoutAReaderIsAStop) {
  Job job;
  const std::string code = job.dir() / "code";
  std::string command = "{ " + BinaryPath();
  for (const std::string& flag : job.Flags(Endless())) command += " '" + flag + "'";
  command += " 2>" + (job.dir() / "err") + "; echo $? >" + code + "; } | head -1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ReadFile(code), "75\n") << ReadFile(job.dir() / "err");
  const std::string latest = ReadFile(job.run_dir() + "/checkpoints/latest");
  EXPECT_EQ(latest, "step_" + std::to_string(LastStep(job.run_dir())));
  EXPECT_EQ(Call({"checkpoint", "verify", job.run_dir()}).code, 0);
  EXPECT_TRUE(Holds(ReadFile(job.run_dir() + "/logs/rank_0.log"), "Its reader has gone: stopping"));
}

// A reader that is there and does not read holds the run up, and no stop.
TEST(Console, ThatIsFullAndUnreadHearsAStop) {
  for (const bool terminal : {false, true}) {
    Job job;
    std::string path = job.dir() / "pipe";
    int reader = -1, writer = -1;
    if (terminal) {
      char name[64];
      ASSERT_EQ(openpty(&reader, &writer, name, nullptr, nullptr), 0);
      path = name;
    } else {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
      reader = open(path.c_str(), O_RDWR | O_CLOEXEC);
      ASSERT_EQ(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
    }
    std::string command = "exec " + BinaryPath();
    for (const std::string& flag : job.Flags(Endless())) command += " '" + flag + "'";
    Process::Options options;
    options.program = "bash";
    options.environment = {{"TERM", "xterm"}};
    Process run({"-c", command + " >" + path + " 2>&1"}, options);
    int64_t before = 0;
    EXPECT_TRUE(Eventually([&] {  // It stands still.
      const int64_t last = LastStep(job.run_dir());
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return std::exchange(before, last) == last && last > 0;
    }));
    run.Signal(SIGTERM);
    EXPECT_EQ(run.Wait().code, 75);
    const std::string latest = ReadFile(job.run_dir() + "/checkpoints/latest");
    EXPECT_EQ(latest, "step_" + std::to_string(LastStep(job.run_dir())));
    EXPECT_TRUE(Holds(ReadFile(job.run_dir() + "/logs/rank_0.log"),
                      "the run can go on from " + job.run_dir() + "/checkpoints/" + latest));
    for (const int fd : {reader, writer}) close(fd);
  }
}

// The launcher has the reader, and the ranks have the launcher: they train on.
TEST(Console, WithoutAReaderIsNoStopForALauncher) {
  Job job;
  const std::string code = job.dir() / "code";
  std::string command = "{ " + BinaryPath();
  for (const std::string& argument : job.LaunchArguments(2, {"train.steps=300"})) {
    command += " '" + argument + "'";
  }
  command += " 2>" + (job.dir() / "err") + "; echo $? >" + code + "; } | head -1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ReadFile(code), "0\n") << ReadFile(job.dir() / "err");
  EXPECT_EQ(LastStep(job.run_dir()), 300);
}

TEST(Console, OnAFullDiskIsDoneWithout) {
  Job job;
  std::string command = BinaryPath();
  for (const std::string& flag : job.Flags()) command += " '" + flag + "'";
  EXPECT_EQ(std::system((command + " >/dev/full").c_str()), 0);
  EXPECT_EQ(LastStep(job.run_dir()), 10);
  EXPECT_TRUE(Holds(ReadFile(job.run_dir() + "/logs/rank_0.log"), "the console cannot be written"));
}

TEST(Console, ShowsNoEscapeSequences) {
  Job job;
  const std::string evil = "\x1b]0;owned\x07\x1b[2J";
  const Outcome run = job.Train({"run.name=\"" + std::string("\\e]0;owned\\a\\e[2J") + "\"",
                                 "run.dir=" + job.run_dir() + evil, "checkpoint.every=10"});
  EXPECT_EQ(run.code, 0) << run.Text();
  const Outcome missing =
      job.Train({"data.train={source: text, paths: [\"/no/\\e[2J\"]}", "model.vocab_size=256"});
  EXPECT_EQ(missing.code, 4) << missing.Text();
  const Outcome usage = Call({"--config", "/no/" + evil});
  EXPECT_EQ(usage.code, 2);
  const std::string log = ReadFile(job.run_dir() + evil + "/logs/rank_0.log");
  EXPECT_TRUE(Holds(log, "\\x1b[2J")) << log;
  Strings texts = {run.Text(), missing.Text(), usage.Text(), log};
  // Commands that name paths as they were given.
  const std::string saved = job.run_dir() + evil + "/checkpoints", out = job.dir() / ("out" + evil);
  for (const Strings& command : std::vector<Strings>{
           {"checkpoint", "ls", saved},
           {"checkpoint", "verify", saved},
           {"checkpoint", "reshard", saved, "--world-size", "1", "--out", out + "r"},
           {"checkpoint", "export", saved, "--out", out + "e"},
           {"checkpoint", "import", out + "e", "--out", out + "i"},
           {"report", job.run_dir() + evil, "--out", out + "\n.html"}}) {
    const Outcome outcome = Call(command);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_TRUE(Holds(outcome.out, "\\x1b[2J")) << outcome.out;
    texts.push_back(outcome.Text());
  }
  EXPECT_TRUE(Holds(texts.back(), "\\x0a.html: ")) << texts.back();
  Strings check = {"config", "check"};
  for (const std::string& flag : job.Flags({"run.dir=" + job.run_dir() + evil})) {
    check.push_back(flag);
  }
  texts.push_back(Call(check).Text());
  texts.push_back(Call({"checkpoint", "ls", out + "i"}).Text());  // No checkpoints in it.
  for (const std::string& text : texts) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    EXPECT_EQ(text.find('\x07'), std::string::npos) << text;
  }
}

// A laptop that is closed, a job that a scheduler suspends: nobody has waited for anybody.
TEST(AllStopped, GoOnWhenContinued) {
  Job job;
  Strings settings = Endless();
  settings.push_back("run.timeout_s=5");
  settings.push_back("log.every=10");
  Process run = job.Start(job.LaunchArguments(3, settings));
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 20; })) << run.Out();
  std::vector<pid_t> all = {run.pid()};
  for (const auto& [rank, pid] : RanksOf(run.pid())) all.push_back(pid);
  ASSERT_EQ(all.size(), 4u);
  for (const pid_t pid : all) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  std::this_thread::sleep_for(std::chrono::seconds(9));
  const int64_t before = LastStep(job.run_dir());
  for (const pid_t pid : all) ASSERT_EQ(kill(pid, SIGCONT), 0);
  ASSERT_TRUE(
      Eventually([&] { return LastStep(job.run_dir()) >= before + 150 || !run.Running(); }));
  run.Signal(SIGTERM);
  const Outcome outcome = run.Wait();
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
}

}  // namespace
}  // namespace fsdp::e2e
