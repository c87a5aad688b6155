// `child launch ...` (child.cc), seen from outside: exit code, output, and that nobody is left.
#include "trainer/launch/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "trainer/core/errors.h"
#include "trainer/launch/spawn.h"

namespace fsdp {
namespace {

constexpr char kChild[] = "tests/trainer/launch/child";
constexpr char kForEver[] = "3600000";  // ms; what it bounds must not decide the test.
constexpr std::chrono::seconds kPatience(120);

using Strings = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// One supervisor. Its two streams come through pipes, or both through one (`merged`).
class Launched {
 public:
  Launched(const Strings& options, const Strings& actions, const Variables& variables = {},
           bool merged = false, rlim_t files = 0) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // Its orphans become ours: Wait() sees them.
    std::vector<char*> argv;
    Strings strings = {kChild, "launch"};
    strings.insert(strings.end(), options.begin(), options.end());
    strings.push_back("--");
    for (const std::string& action : actions) strings.push_back("--" + action);
    for (std::string& text : strings) argv.push_back(text.data());
    argv.push_back(nullptr);
    auto [output, output_end] = MakePipe();
    auto [errors, errors_end] = MakePipe();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output_end.get(), STDOUT_FILENO);
      dup2(merged ? output_end.get() : errors_end.get(), STDERR_FILENO);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      rlimit limit;
      getrlimit(RLIMIT_NOFILE, &limit);
      if (files > 0) limit.rlim_cur = files;
      setrlimit(RLIMIT_NOFILE, &limit);
      execv(kChild, argv.data());
      _exit(126);
    }
    pipes_[0] = std::move(output);
    pipes_[1] = std::move(errors);
  }

  ~Launched() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) >= 0) {  // After a failure: end what it left.
      std::ifstream children("/proc/thread-self/children");
      for (pid_t child; children >> child;) kill(child, SIGKILL);
      usleep(1000);
    }
  }

  void Signal(int number) { kill(pid_, number); }
  pid_t pid() const { return pid_; }

  // Reads until the output holds `text` that often.
  void Await(const std::string& text, int times = 1) {
    while (Count(text) < times) {
      if (!ReadSome()) throw std::runtime_error("it ended without `" + text + "`:\n" + All());
    }
  }

  int Count(const std::string& text) const {
    int count = 0;
    for (const std::string& stream : text_) {
      for (size_t at = stream.find(text); at != std::string::npos; at = stream.find(text, at + 1)) {
        ++count;
      }
    }
    return count;
  }

  void ReadAll() {
    while (ReadSome()) {
    }
  }

  // Reads all output. The exit code, or minus the signal; none of its descendants is left, not even
  // as a zombie.
  int Wait() {
    ReadAll();
    return WaitWithoutReading();
  }

  int WaitWithoutReading() {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pid_, &status, WNOHANG)) == 0) {
      if (std::chrono::steady_clock::now() > start_ + kPatience / 4) {
        throw std::runtime_error("it does not end:\n" + All());
      }
      usleep(1000);
    }
    EXPECT_EQ(ended, pid_);
    pid_ = -1;
    const pid_t left = waitpid(-1, nullptr, WNOHANG);
    EXPECT_EQ(left, -1) << "a process is left: "
                        << (left == 0 ? "it runs" : std::to_string(left) + ", a zombie");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  void CloseOutput() {
    pipes_[0].Close();
    pipes_[1].Close();
  }

  const std::string& output() const { return text_[0]; }
  const std::string& errors() const { return text_[1]; }
  std::string All() const { return text_[0] + text_[1]; }

 private:
  // False at the end of both streams.
  bool ReadSome() {
    std::vector<pollfd> polled;
    for (const UniqueFd& pipe : pipes_) {
      if (pipe.open()) polled.push_back({pipe.get(), POLLIN, 0});
    }
    if (polled.empty()) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        start_ + kPatience - std::chrono::steady_clock::now());
    if (poll(polled.data(), polled.size(), std::max<int>(0, static_cast<int>(left.count()))) == 0) {
      throw std::runtime_error("nothing more came in time:\n" + All());
    }
    for (const pollfd& ready : polled) {
      if (ready.revents == 0) continue;
      const int i = ready.fd == pipes_[0].get() ? 0 : 1;
      char bytes[65536];
      const ssize_t length = read(ready.fd, bytes, sizeof(bytes));
      if (length > 0) {
        text_[i].append(bytes, static_cast<size_t>(length));
      } else {
        pipes_[i].Close();
      }
    }
    return true;
  }

  pid_t pid_;
  UniqueFd pipes_[2];
  std::string text_[2];
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A directory of this test alone.
std::string Directory() {
  static int made = 0;
  const std::string path =
      ::testing::TempDir() + "/launch_" + std::to_string(getpid()) + "_" + std::to_string(made++);
  return path;
}

std::string File(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

const Strings kTwo = {"--nproc-per-node", "2"};
const Strings kThree = {"--nproc-per-node", "3"};
const Variables kPatient = {{"LAUNCH_TEST_GRACE_MS", kForEver}};
const Variables kHasty = {{"LAUNCH_TEST_GRACE_MS", "50"},
                          {"LAUNCH_TEST_GRACE_AFTER_SIGTERM_MS", "50"}};

TEST(SupervisorTest, RanksSeeTorchrunsEnvironment) {
  const Variables stale = {{"RANK", "7"},
                           {"MASTER_PORT", "1"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"OMPI_COMM_WORLD_RANK", "9"}};
  Launched it(kTwo, {"all:environment", "all:group", "all:stdin", "all:descriptors", "0:listen"},
              stale);
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.Count("[0] rank 0 of 2, by fsdp-train launch, port "), 1) << it.All();
  EXPECT_EQ(it.Count("[1] rank 1 of 2, by fsdp-train launch, port "), 1) << it.All();
  EXPECT_EQ(it.Count("at 127.0.0.1, restart 0 of 0\n"), 2) << it.All();
  EXPECT_EQ(it.Count("own group\n"), 2) << it.All();
  EXPECT_EQ(it.Count("] at its end\n"), 2) << it.All();
  EXPECT_EQ(it.Count("] open "), 0) << it.All();
  EXPECT_EQ(it.Count("[0] listens\n"), 1) << it.All();
  EXPECT_EQ(it.errors(), "");
}

TEST(SupervisorTest, OneRankIsTheDefault) {
  Launched it({}, {"all:environment"});
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.output().find("[0] rank 0 of 1, by fsdp-train launch"), 0u);
}

TEST(SupervisorTest, FlagsOfTheProgramItselfGoToTheRanks) {
  Launched it({}, {"config", "1:x", "0:print=two words", "config=b", "0:print=--nnodes"});
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.output(), "[0] two words\n[0] --nnodes\n");
}

TEST(SupervisorTest, RendezvousEndpoint) {
  Launched it({"--rdzv-endpoint", "localhost:29876"}, {"0:environment"});
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.Count("port 29876, store 29876, at localhost,"), 1) << it.All();
}

TEST(SupervisorTest, RanksOfOneHostOfSeveral) {
  Launched it({"--nnodes", "3", "--nproc-per-node", "2", "--node-rank", "1", "--rdzv-endpoint",
               "[::1]:29876"},
              {"all:environment", "all:variable=GROUP_RANK", "all:variable=GROUP_WORLD_SIZE",
               "all:variable=TORCHELASTIC_RUN_ID"});
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.Count("[2] rank 2 of 6, local rank 0 of 2, by fsdp-train launch, port 29876, "), 1);
  EXPECT_EQ(it.Count("[3] rank 3 of 6, local rank 1 of 2, by fsdp-train launch, port 29876, "), 1);
  EXPECT_EQ(it.Count("at ::1,"), 2) << it.All();
  EXPECT_EQ(it.Count("GROUP_RANK=1\n"), 2) << it.All();
  EXPECT_EQ(it.Count("GROUP_WORLD_SIZE=3\n"), 2) << it.All();
  EXPECT_EQ(it.Count("TORCHELASTIC_RUN_ID=launch-[::1]:29876\n"), 2) << it.All();
}

// Where the secret comes from: a file, what is set, or, on one host, chance.
TEST(SupervisorTest, TheJobsSecret) {
  const Strings two_hosts = {"--nnodes", "2", "--rdzv-endpoint", "localhost:29876"};
  const Strings look = {"all:variable=FSDP_TRAIN_SECRET"};
  const std::string file = ::testing::TempDir() + "/secret";
  std::ofstream(file) << "the secret of the file\n";
  chmod(file.c_str(), 0600);
  {
    Launched it(kTwo, look);
    EXPECT_EQ(it.Wait(), 0) << it.All();
    ASSERT_EQ(it.Count("FSDP_TRAIN_SECRET="), 2) << it.All();
    const size_t first = it.output().find('='), last = it.output().rfind('=');
    EXPECT_EQ(it.output().substr(first, 66), it.output().substr(last, 66));
    Launched again(kTwo, look);
    EXPECT_EQ(again.Wait(), 0);
    EXPECT_EQ(again.Count(it.output().substr(first, 66)), 0);
  }
  {
    Launched it(two_hosts, look);
    EXPECT_EQ(it.Wait(), 0) << it.All();
    EXPECT_EQ(it.Count("FSDP_TRAIN_SECRET unset\n"), 1) << it.All();
  }
  Strings with_file = two_hosts;
  with_file.insert(with_file.end(), {"--rdzv-secret-file", file});
  const Variables set = {{"FSDP_TRAIN_SECRET", "the secret of the shell"}};
  {
    Launched it(two_hosts, look, set);
    EXPECT_EQ(it.Wait(), 0) << it.All();
    EXPECT_EQ(it.Count("FSDP_TRAIN_SECRET=the secret of the shell\n"), 1) << it.All();
  }
  {
    Launched it(with_file, look, set);
    EXPECT_EQ(it.Wait(), 0) << it.All();
    EXPECT_EQ(it.Count("FSDP_TRAIN_SECRET=the secret of the file\n"), 1) << it.All();
  }
  {
    Launched it(kTwo, {"0:print=ran"}, {{"FSDP_TRAIN_SECRET", "short"}});
    EXPECT_EQ(it.Wait(), 2);
    EXPECT_EQ(it.errors().find("FSDP_TRAIN_SECRET: a secret of 5 bytes"), 0u) << it.errors();
    EXPECT_EQ(it.Count("ran\n"), 0);
  }
}

TEST(SupervisorTest, StreamsStayApartAndHalfLinesComeAtTheEnd) {
  Launched it(kTwo, {"0:print=out", "0:error=err", "1:half=no end"});
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.Count("[0] out\n"), 1);
  EXPECT_NE(it.output().find("[1] no end\n"), std::string::npos) << it.output();
  EXPECT_EQ(it.errors(), "[0] err\n");
}

TEST(SupervisorTest, LongAndBinaryLines) {
  Launched it({}, {"0:binary", "0:long=150000", "0:print=after"});
  EXPECT_EQ(it.Wait(), 0);
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    bytes += static_cast<char>(i);
    if (i == '\n') bytes += "[0] ";
  }
  const std::string x(64 << 10, 'x');
  const std::string rest(150000 - 2 * x.size(), 'x');
  const std::string want =
      "[0] " + bytes + "\n[0] " + x + "\n[0] " + x + "\n[0] " + rest + "\n[0] after\n";
  EXPECT_TRUE(it.output() == want) << it.output().size() << " bytes, want " << want.size();
}

TEST(SupervisorTest, LinesOfDifferentRanksAndStreamsNeverMix) {
  Launched it({"--nproc-per-node", "4"}, {"all:lines=100"}, {}, /*merged=*/true);
  EXPECT_EQ(it.Wait(), 0);
  std::istringstream lines(it.output());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.size(), 5004u);
    const int rank = line[1] - '0';
    std::string prefix = "[?] ";
    prefix[1] = line[1];
    EXPECT_EQ(line.substr(0, 4), prefix);
    EXPECT_EQ(line.find_first_not_of(static_cast<char>('a' + rank), 4), std::string::npos) << line;
  }
  EXPECT_EQ(count, 400);
}

TEST(SupervisorTest, LogFilesHoldTheRanksOwnBytes) {
  const std::string directory = Directory() + "/deeper";
  const Strings options = {"--nproc-per-node", "2", "--log-dir", directory};
  for (int run = 1; run <= 2; ++run) {  // The second appends.
    Launched it(options, {"0:long=150000", "0:binary", "1:print=one", "1:error=two", "1:half=3"});
    EXPECT_EQ(it.Wait(), 0);
  }
  std::string bytes(150000, 'x');
  bytes += '\n';
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  bytes += '\n';
  EXPECT_TRUE(File(directory + "/rank_0.log") == bytes + bytes);
  std::string one = File(directory + "/rank_1.log");
  EXPECT_EQ(one.size(), 2 * std::string("one\ntwo\n3\n").size()) << one;
  for (const char* line : {"one\n", "two\n", "3\n"}) EXPECT_NE(one.find(line), std::string::npos);
}

TEST(SupervisorTest, ARankThatReturnsZeroIsNoFailure) {
  const std::string file = Directory();
  Launched it(kTwo, {"0:print=done", "1:await=" + file, "1:print=later"}, kHasty);
  it.Await("[0] done");
  std::ofstream(file).close();
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.Count("[1] later"), 1);
  EXPECT_EQ(it.errors(), "");
}

// The signal is this process's: a thread that does not block it may have it, as a driver's may.
TEST(SupervisorTest, RanksWhoseSignalAnotherThreadTakesAreReaped) {
  Launched it(kTwo, {"all:print=done"}, {{"LAUNCH_TEST_TAKES_SIGCHLD", "1"}});
  EXPECT_EQ(it.Wait(), 0) << it.All();
}

TEST(SupervisorTest, TheFirstThatFailedIsNamedAndItsCodeReturned) {
  for (const int code : {1, 2, 3, 4, 5, 7, 200}) {
    Launched it(kThree, {"1:exit=" + std::to_string(code), "0:sleep", "2:sleep"},
                {{"LAUNCH_TEST_GRACE_MS", "50"}, {"LAUNCH_TEST_GRACE_AFTER_SIGTERM_MS", kForEver}});
    EXPECT_EQ(it.Wait(), code);
    EXPECT_EQ(it.Count("launch: rank 1 (pid "), 1) << it.errors();
    EXPECT_EQ(it.Count(") failed first: exit code " + std::to_string(code)), 1) << it.errors();
    EXPECT_EQ(it.Count("launch: ranks 0, 2 still there 0.05 s later: SIGTERM\n"), 1) << it.errors();
    EXPECT_EQ(it.Count("SIGKILL"), 0) << it.errors();
  }
}

TEST(SupervisorTest, ASignalsDeathIs128PlusItsNumber) {
  for (const auto& [name, number] :
       std::map<std::string, int>{{"SEGV", SIGSEGV}, {"KILL", SIGKILL}, {"ABRT", SIGABRT}}) {
    Launched it(kTwo, {"1:raise=" + name, "0:sleep"}, kHasty);
    EXPECT_EQ(it.Wait(), 128 + number);
    EXPECT_EQ(it.Count(") failed first: killed by SIG" + name), 1) << it.errors();
    EXPECT_EQ(it.Count(", exit code " + std::to_string(128 + number) + "\n"), 1) << it.errors();
  }
}

// Only where the kernel has counted a kill since the ranks started.
TEST(SupervisorTest, SaysThatTheKernelWasOutOfMemoryWhereItIsKnown) {
  const std::string root = Directory(), group = "/sys/fs/cgroup/memory/job";
  const std::string counter = group + "/memory.oom_control";
  std::filesystem::create_directories(root + group);
  std::filesystem::create_directories(root + "/proc/self");
  std::ofstream(root + "/proc/self/cgroup") << "4:memory:/job\n";
  Variables variables = kHasty;
  variables["LAUNCH_TEST_MEMORY_ROOT"] = root;
  std::ofstream(root + counter) << "under_oom 0\noom_kill 3\n";
  Launched killed(kTwo, {"1:oom_kill=" + root + counter, "0:sleep"}, variables);
  EXPECT_EQ(killed.Wait(), 137);
  EXPECT_EQ(killed.Count(") failed first: killed by the kernel: out of memory (oom_kill of " +
                         counter + ": 3, now 4), exit code 137\n"),
            1)
      << killed.errors();
  // The count stands at 4 now: that was another's.
  Launched by_hand(kTwo, {"1:raise=KILL", "0:sleep"}, variables);
  EXPECT_EQ(by_hand.Wait(), 137);
  EXPECT_EQ(by_hand.Count("killed by SIGKILL (by hand, or out of memory: see dmesg)"), 1)
      << by_hand.errors();
}

TEST(SupervisorTest, LastWordsComeBeforeTheVerdict) {
  Launched it(kTwo, {"1:error=why", "1:half=half a word", "1:exit=4", "0:sleep"}, kHasty,
              /*merged=*/true);
  EXPECT_EQ(it.Wait(), 4);
  const size_t verdict = it.output().find("launch: rank 1");
  EXPECT_LT(it.output().find("[1] why\n"), verdict) << it.output();
  EXPECT_LT(it.output().find("[1] half a word\n"), verdict) << it.output();
}

TEST(SupervisorTest, AnEchoGivesWayToTheFailureItEchoes) {
  // In either order: rank 1 is still unwinding when rank 0 notices.
  const std::string file = Directory();
  Launched it(kThree, {"0:exit=6", "1:await=" + file, "1:exit=1", "2:exit=6"}, kPatient);
  usleep(100000);
  std::ofstream(file).close();
  EXPECT_EQ(it.Wait(), 1);
  EXPECT_EQ(it.Count("failed first"), 1) << it.errors();
  EXPECT_EQ(it.Count("launch: rank 1 (pid "), 1) << it.errors();
}

// Among ranks that end alike, the one that says why counts, whichever is first.
TEST(SupervisorTest, ARankWithoutAWordGivesWayToOneThatSaysWhy) {
  const std::string file = Directory();
  Launched it(kThree, {"1:exit=5", "2:exit=5", "0:await=" + file, "0:error=why", "0:exit=5"},
              kPatient);
  usleep(100000);
  std::ofstream(file).close();
  EXPECT_EQ(it.Wait(), 5);
  EXPECT_EQ(it.Count("failed first"), 1) << it.errors();
  EXPECT_EQ(it.Count("launch: rank 0 (pid "), 1) << it.errors();
}

TEST(SupervisorTest, ACollectiveThatNobodyExplainsIsNamed) {
  Launched it(kTwo, {"0:exit=6", "1:sleep"}, kHasty);
  EXPECT_EQ(it.Wait(), 6);
  EXPECT_EQ(it.Count("launch: rank 0 (pid "), 1) << it.errors();
  EXPECT_EQ(it.Count("exit code 6, a collective failed or timed out\n"), 1) << it.errors();
}

TEST(SupervisorTest, WhatWeEndedOurselvesIsNotTheCause) {
  Launched it(kTwo, {"0:exit=6", "1:train=1"}, kHasty);  // Returns 75 on the SIGTERM.
  EXPECT_EQ(it.Wait(), 6);
  Launched other(kTwo, {"0:exit=6", "1:sleep"}, kHasty);  // Dies of it.
  EXPECT_EQ(other.Wait(), 6);
}

TEST(SupervisorTest, WhoIgnoresSigtermIsKilled) {
  const std::string deaf = Directory();
  Launched it(kThree,
              {"all:ignore=TERM", "0:touch=" + deaf + "0", "2:touch=" + deaf + "2",
               "1:await=" + deaf + "0", "1:await=" + deaf + "2", "1:exit=3", "all:sleep"},
              kHasty);
  EXPECT_EQ(it.Wait(), 3);
  EXPECT_EQ(it.Count("launch: rank 1 (pid "), 1) << it.errors();
  EXPECT_EQ(it.Count("launch: ranks 0, 2 still there 0.05 s after SIGTERM: SIGKILL\n"), 1)
      << it.errors();
}

// Wait() finds whatever is left.
TEST(SupervisorTest, GrandchildrenEnd) {
  for (const std::string kind : {"group", "session"}) {
    Launched done(kTwo, {"all:grandchild=" + kind, "all:half=held open by a grandchild"});
    EXPECT_EQ(done.Wait(), 0);
    EXPECT_EQ(done.Count("] held open by a grandchild\n"), 2) << done.output();
    Launched failed(kTwo, {"all:grandchild=" + kind, "0:raise=SEGV", "1:sleep"}, kHasty);
    EXPECT_EQ(failed.Wait(), 139);
    Launched restarted({"--max-restarts", "2"}, {"0:grandchild=" + kind, "0:fail_at_first=1"});
    EXPECT_EQ(restarted.Wait(), 0);
  }
}

TEST(SupervisorTest, ARanksGroupEndsWithItAndNotOnlyAtTheEnd) {
  Launched it(kTwo, {"0:grandchild=group", "1:signals=TERM"});
  it.Await("[1] ready");
  it.Await("[0] grandchild ");
  it.Await("!\n");
  const size_t number = it.output().find("[0] grandchild ") + 15;
  const pid_t grandchild = std::stoi(it.output().substr(number));
  for (int i = 0; i < 60000 && kill(grandchild, 0) == 0; ++i) usleep(1000);
  EXPECT_EQ(kill(grandchild, 0), -1);
  it.Signal(SIGTERM);
  EXPECT_EQ(it.Wait(), 0);
}

TEST(SupervisorTest, RanksDieWithTheSupervisor) {
  Launched it(kTwo, {"all:ignore=TERM", "all:print=ready", "all:sleep"});
  it.Await("] ready", 2);
  it.Signal(SIGKILL);
  int killed = 0;
  for (int i = 0; i < 3; ++i) {  // The supervisor, and the ranks that became ours.
    int status = 0;
    if (waitpid(-1, &status, 0) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++killed;
    }
  }
  EXPECT_EQ(killed, 3);
}

TEST(SupervisorTest, EverySignalIsForwardedOnceAndToAllRanks) {
  const Variables variables = {{"LAUNCH_TEST_REPEAT_MS", kForEver},
                               {"LAUNCH_TEST_GRACE_MS", kForEver}};
  Launched it(kTwo, {"all:signals=TERM", "all:print=end"}, variables);
  it.Await("] ready", 2);
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const std::string caught = std::string("] caught ") + sigabbrev_np(number);
    it.Signal(number);
    it.Await(caught, 2);
    it.Signal(number);  // A repeat. Whether it came through shows at the end.
  }
  it.Signal(SIGTERM);
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.Count("] caught USR1"), 2) << it.All();
  EXPECT_EQ(it.Count("] caught USR2"), 2) << it.All();
  EXPECT_EQ(it.Count("] caught TERM"), 2) << it.All();
  EXPECT_EQ(it.Count("] end"), 2) << it.All();
}

TEST(SupervisorTest, ARepeatOfSigintOrSigtermIsTheSame) {
  Launched it(kTwo, {"all:signals=USR2"}, {{"LAUNCH_TEST_REPEAT_MS", kForEver}});
  it.Await("] ready", 2);
  it.Signal(SIGINT);
  it.Await("] caught INT", 2);
  it.Signal(SIGINT);
  it.Signal(SIGTERM);
  it.Signal(SIGUSR1);  // Comes through last, or in the same reading as those two.
  it.Await("] caught USR1", 2);
  it.Signal(SIGUSR2);
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.Count("] caught INT"), 2) << it.All();
  EXPECT_EQ(it.Count("] caught TERM"), 0) << it.All();
}

// Until a rank has handlers, a signal waits for them.
TEST(SupervisorTest, RanksBeginWithSignalsHeld) {
  Launched it(kTwo, {"all:held"});
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.Count("] signals held\n"), 2) << it.All();
}

// However early it comes: the launcher has begun, and the ranks hear of it when they are there.
TEST(SupervisorTest, ASignalWhileRanksStartReachesThem) {
  Launched it({"--nproc-per-node", "8"}, {std::string("all:train=") + kForEver});
  it.Await("] ready");  // The others are still coming.
  it.Signal(SIGTERM);
  EXPECT_EQ(it.Wait(), 75) << it.All();
  EXPECT_EQ(it.Count("] stop requested\n"), 8) << it.All();
}

// A rank may have processes of its own (a data loader, a debugger): what it hears, they hear.
// A rank that a stop ends before it has handlers has stopped early, and no other is missed.
TEST(SupervisorTest, ASignalThatKillsARankAtItsStartIsAStop) {
  for (const char* signal : {"TERM", "INT", "HUP"}) {
    Launched it(kThree,
                {std::string("1:raise=") + signal, std::string("0:until_left=") + kForEver,
                 std::string("2:until_left=") + kForEver},
                {{"LAUNCH_TEST_REPEAT_MS", kForEver}});
    EXPECT_EQ(it.Wait(), 75) << it.All();
    EXPECT_EQ(it.Count("] rank 1 has left: exit code 75\n"), 2) << it.All();
    EXPECT_EQ(it.Count("launch: rank 1 (pid "), 1) << it.errors();
    EXPECT_EQ(it.Count(std::string("had yet to begin when SIG") + signal + " came"), 1);
  }
}

// Those that wait for it hear at once, however it ends.
TEST(SupervisorTest, ARankThatLeavesIsToldToTheOthers) {
  for (const auto& [how, words] :
       std::map<std::string, std::string>{{"exit=3", "exit code 3, does not fit in memory"},
                                          {"exit=75", "exit code 75"},
                                          {"raise=KILL", "killed by SIGKILL"}}) {
    Launched it({"--nnodes", "3", "--nproc-per-node", "2", "--node-rank", "2", "--rdzv-endpoint",
                 "localhost:29876"},
                {"5:" + how, std::string("4:until_left=") + kForEver}, kPatient);
    it.Wait();
    EXPECT_EQ(it.Count("[4] rank 5 has left: " + words + "\n"), 1) << it.All();
  }
}

TEST(SupervisorTest, SignalsReachTheWholeGroupOfARank) {
  Launched it(kTwo, {"all:child_signals=USR1", "all:signals=USR1"});
  it.Await("] ready", 2);
  it.Signal(SIGTERM);
  it.Await("] child caught TERM", 2);
  it.Await("] caught TERM", 2);
  it.Signal(SIGUSR1);
  EXPECT_EQ(it.Wait(), 0) << it.All();
}

TEST(SupervisorTest, AfterAWhileASecondStopIsForwardedAndAThirdKills) {
  Launched it(kTwo, {"all:signals=USR2"}, {{"LAUNCH_TEST_REPEAT_MS", "1"}});
  it.Await("] ready", 2);
  it.Signal(SIGTERM);
  it.Await("] caught TERM", 2);
  usleep(10000);
  it.Signal(SIGTERM);
  it.Await("] caught TERM", 4);
  usleep(10000);
  it.Signal(SIGINT);
  EXPECT_EQ(it.Wait(), 128 + SIGKILL);
  EXPECT_EQ(it.Count("launch: SIGINT, the third: SIGKILL\n"), 1) << it.errors();
  EXPECT_EQ(it.Count("dmesg"), 0) << it.errors();
}

TEST(SupervisorTest, ASecondStopEndsRanksThatTrain) {
  Launched it(kTwo, {"all:never_stop=1"},
              {{"LAUNCH_TEST_REPEAT_MS", "1"}, {"LAUNCH_TEST_GRACE_MS", kForEver}});
  it.Await("] ready", 2);
  it.Signal(SIGTERM);
  it.Await("] stop requested", 2);
  usleep(10000);
  it.Signal(SIGTERM);
  EXPECT_EQ(it.Wait(), 75);
  EXPECT_EQ(it.errors(), "launch: SIGTERM, the second: the ranks end now; a third kills them\n");
}

TEST(SupervisorTest, StoppedEarlyIs75AndNoRestart) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Launched it({"--nproc-per-node", "2", "--max-restarts", "3"},
                {std::string("all:train=") + kForEver});
    it.Await("] ready", 2);
    it.Signal(SIGUSR1);
    it.Await("] checkpoint", 2);
    it.Signal(SIGUSR2);
    it.Await("] report", 2);
    it.Signal(number);
    EXPECT_EQ(it.Wait(), 75);
    EXPECT_EQ(it.Count("] ready"), 2) << it.All();
    EXPECT_EQ(it.Count("failed"), 0) << it.errors();
  }
}

TEST(SupervisorTest, ARestartStartsAllRanksOnAnotherPort) {
  const std::string directory = Directory();
  Launched it({"--nproc-per-node", "2", "--max-restarts", "2", "--log-dir", directory},
              {"all:environment", "0:listen", "1:fail_at_first=1", "0:fail_at_first=6"}, kPatient);
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.Count("launch: restart 1 of 2 after exit code 1\n"), 1) << it.errors();
  EXPECT_EQ(it.Count("launch: restart 2"), 0) << it.errors();
  EXPECT_EQ(it.Count("[0] listens"), 2) << it.All();
  EXPECT_EQ(it.Count("restart 0 of 2\n"), 2) << it.All();
  EXPECT_EQ(it.Count("restart 1 of 2\n"), 2) << it.All();
  const size_t first = it.output().find(", port ");
  const size_t last = it.output().rfind(", port ");
  EXPECT_NE(it.output().substr(first, 13), it.output().substr(last, 13));
  const std::string log = File(directory + "/rank_1.log");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
}

TEST(SupervisorTest, RestartsEnd) {
  Launched it({"--max-restarts", "2"}, {"0:print=try", "0:exit=1"});
  EXPECT_EQ(it.Wait(), 1);
  EXPECT_EQ(it.Count("[0] try"), 3);
  EXPECT_EQ(it.Count("launch: restart 2 of 2 after exit code 1\n"), 1) << it.errors();
  // 75 with no signal of ours: something else stopped the rank, and there is a checkpoint.
  Launched stopped({"--max-restarts", "1"}, {"0:print=try", "0:exit=75"});
  EXPECT_EQ(stopped.Wait(), 75);
  EXPECT_EQ(stopped.Count("[0] try"), 2);
}

TEST(SupervisorTest, WhatWouldFailAgainIsNotRestarted) {
  for (const int code : {2, 3, 4, 5, 7}) {
    Launched it({"--max-restarts", "2"}, {"0:print=try", "0:exit=" + std::to_string(code)});
    EXPECT_EQ(it.Wait(), code);
    EXPECT_EQ(it.Count("[0] try"), 1);
    EXPECT_EQ(it.Count("no restart: exit code " + std::to_string(code)), 1) << it.errors();
  }
}

TEST(SupervisorTest, AfterAStopAFailureIsNotRestarted) {
  Launched it({"--max-restarts", "2"}, {"0:signals=TERM", "0:exit=1"});
  it.Await("[0] ready");
  it.Signal(SIGTERM);
  EXPECT_EQ(it.Wait(), 1);
  EXPECT_EQ(it.Count("[0] ready"), 1);
}

// Rank 0 has filled every pipe on the way and nobody reads: signals still come through.
TEST(SupervisorTest, ASlowReaderDoesNotBlockTheSupervisor) {
  const std::string begin = Directory(), caught = Directory(), written = Directory();
  Launched it(kTwo, {"0:ignore=USR1", "0:await=" + begin, "0:lines=2000", "0:touch=" + written,
                     "1:signals=USR1", "1:touch=" + caught});
  it.Await("[1] ready");
  std::ofstream{begin};  // From here on nobody reads.
  usleep(100000);
  it.Signal(SIGUSR1);
  for (int i = 0; i < 60000 && access(caught.c_str(), F_OK) != 0; ++i) usleep(1000);
  EXPECT_EQ(access(caught.c_str(), F_OK), 0);
  EXPECT_NE(access(written.c_str(), F_OK), 0);
  EXPECT_EQ(it.Wait(), 0);
  EXPECT_EQ(it.output().size() + it.errors().size(),
            2000u * 5005u + std::string("[1] ready\n[1] caught USR1\n").size());
}

// The ranks are done, and what they have written is nobody's concern for longer than the grace.
TEST(SupervisorTest, ALazyReaderIsNotWaitedForWhenTheRanksHaveEnded) {
  Variables variables = {{"LAUNCH_TEST_GRACE_MS", "200"}};
  Launched it({}, {"0:long=500000", "0:exit=3"}, variables);
  EXPECT_EQ(it.WaitWithoutReading(), 3);
  it.ReadAll();
  EXPECT_GE(it.output().size(), 65536u);
  EXPECT_LT(it.output().size(), 500000u);
  const size_t at = it.errors().find(
      "launch: nobody has read the ranks' output for 0.2 s after their "
      "end: ");
  ASSERT_NE(at, std::string::npos) << it.errors();
  EXPECT_NE(it.errors().find(" bytes of it are dropped\n", at), std::string::npos);

  variables["LAUNCH_TEST_GRACE_MS"] = kForEver;  // One that comes back in time gets all.
  Launched slow({}, {"0:long=500000", "0:error=end"}, variables);
  usleep(300000);
  EXPECT_EQ(slow.Wait(), 0);
  EXPECT_EQ(slow.output().size(), 500000u + 8 * 4 + 8);
  EXPECT_EQ(slow.errors(), "[0] end\n");
}

// A rank that writes to nobody hears of a stop, and ends.
TEST(SupervisorTest, ALazyReaderDoesNotKeepRanksFromStopping) {
  Launched it(kTwo, {"0:print_until_stop=5000", std::string("1:train=") + kForEver},
              {{"LAUNCH_TEST_GRACE_MS", "50"}});
  it.Await("[0] xxx", 100);
  usleep(100000);  // It writes 5 KB at a time, and all pipes are full.
  it.Signal(SIGTERM);
  EXPECT_EQ(it.WaitWithoutReading(), 75);
}

TEST(SupervisorTest, WithoutAReaderTheRanksGoOn) {
  const std::string file = Directory();
  Launched it(kTwo, {"all:lines=1000", "0:touch=" + file});
  it.CloseOutput();
  EXPECT_EQ(it.WaitWithoutReading(), 0);
  EXPECT_EQ(access(file.c_str(), F_OK), 0);
}

TEST(SupervisorTest, MoreRanksThanTheLimitOfOpenFilesAllows) {
  Launched it({"--nproc-per-node", "40"}, {"all:files"}, {}, /*merged=*/true, /*files=*/64);
  EXPECT_EQ(it.Wait(), 0) << it.All();
  EXPECT_EQ(it.Count("] files 64\n"), 40) << it.All();  // The ranks have what we were given.
}

TEST(SupervisorTest, WrongOptionsAreNamedBeforeAnythingRuns) {
  const std::pair<Strings, const char*> mistakes[] = {
      {{"--nnodes", "2"}, "--rdzv-endpoint: --nnodes 2 needs it, on every host the same"},
      {{"--nnodes", "0"}, "--nnodes 0: want at least 1"},
      {{"--nnodes", "4097"}, "--nnodes 4097: want at most 4096"},
      {{"--node-rank", "1"}, "--node-rank 1: want 0 with one node"},
      {{"--nnodes", "3", "--node-rank", "3", "--rdzv-endpoint", "h:1"},
       "--node-rank 3: want 0 to 2 with --nnodes 3"},
      {{"--nnodes", "3", "--node-rank", "-1", "--rdzv-endpoint", "h:1"}, "--node-rank -1: want"},
      {{"--rdzv-endpoint", "[::1:29500"}, "want HOST:PORT"},
      {{"--rdzv-endpoint", "::1:29500"}, "want HOST:PORT"},
      {{"--rdzv-secret-file", "/nonexistent"}, "--rdzv-secret-file /nonexistent: No such file"},
      {{"--nproc-per-node", "0"}, "--nproc-per-node 0: want 1 to 4096"},
      {{"--nproc-per-node", "4097"}, "--nproc-per-node 4097: want 1 to 4096"},
      {{"--nproc-per-node", "two"}, "two"},
      {{"--nnodes", "4096", "--nproc-per-node", "257", "--rdzv-endpoint", "h:1"},
       "--nnodes 4096 of --nproc-per-node 257 are 1052672 ranks: want at most 1048576"},
      {{"--max-restarts", "-1"}, "--max-restarts -1: want 0 or more"},
      {{"--rdzv-endpoint", "host"}, "--rdzv-endpoint host: want HOST:PORT"},
      {{"--rdzv-endpoint", "host:0"}, "want HOST:PORT"},
      {{"--rdzv-endpoint", "host:99999"}, "want HOST:PORT"},
      {{"--rdzv-endpoint", ":29500"}, "want HOST:PORT"},
      {{"--grace", "-1"}, "--grace: want seconds"},
      {{"--log-dir", "/proc/nowhere"}, "--log-dir /proc/nowhere: cannot be made"},
      {{"--config", "a.yaml"},
       "launch: --config is not an option of launch; the flags of the "
       "training run come after `--`"},
      {{"--config=a.yaml", "--set", "run.seed=1"}, "launch: --config=a.yaml is not an option"},
      {{"--nproc-per-node", "2", "a.yaml"},
       "launch: a.yaml: a recipe is named by --config: fsdp-train launch -- --config a.yaml"},
      {{"--nproc-per-node", "2", "run.seed=3"}, "fsdp-train launch -- --set run.seed=3"},
      {{"--nproc-per-node", "2", "train"}, "launch: train is not an option of launch"},
      {{"--nproc_per_node=2"}, "launch: --nproc_per_node=2: did you mean `--nproc-per-node`?"},
  };
  for (const auto& [options, message] : mistakes) {
    Launched it(options, {"0:print=ran"});
    EXPECT_EQ(it.Wait(), 2) << options[0];
    EXPECT_NE(it.errors().find(message), std::string::npos) << it.errors();
    EXPECT_EQ(it.Count("ran\n"), 0);
  }
  Launched several({"--nnodes", "0", "--max-restarts", "-1"}, {});
  EXPECT_EQ(several.Wait(), 2);
  EXPECT_EQ(several.Count("--"), 2) << several.errors();  // Both in one go.
}

// tests/trainer/launch/child.cc says that there are three.
TEST(SupervisorTest, AsManyRanksAsGpus) {
  Launched it({"--nproc-per-node", "auto"}, {"all:print=ran"});
  EXPECT_EQ(it.Wait(), 0) << it.errors();
  EXPECT_EQ(it.Count("ran\n"), 3);
}

TEST(SupervisorTest, AProgramThatCannotRunIsDeviceErrorAndLeavesNothing) {
  LaunchOptions options;
  options.program = "/nonexistent";
  EXPECT_THROW(Launch(options, {}), DeviceError);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  sigset_t mask;  // And the caller's signals are as they were.
  sigprocmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0);
}

}  // namespace
}  // namespace fsdp
