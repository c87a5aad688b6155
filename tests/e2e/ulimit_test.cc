// A run under a shell's ulimit. Not with a sanitizer's binary, which reserves terabytes of
// addresses before it begins.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/e2e/run_binary.h"
#include "trainer/core/unique_fd.h"

namespace fsdp::e2e {
namespace {

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The binary behind `ulimit limits`.
Outcome CallUnder(const TempDir& dir, const std::string& limits, const Strings& arguments) {
  std::string command = "ulimit " + limits + " && exec " + BinaryPath();
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  Process::Options options;
  options.program = "bash";
  options.output_directory = dir.path();
  return Process({"-c", command}, options).Wait();
}

// With `front` before the flags of the job.
Outcome Under(const Job& job, const std::string& limits, const Strings& front = {}) {
  Strings arguments = front;
  for (const std::string& flag : job.Flags()) arguments.push_back(flag);
  return CallUnder(job.dir(), limits, arguments);
}

const Strings kLaunch = {"launch", "--nproc-per-node", "2", "--"};

// Before anything is allocated, whatever the limit: never a signal, never a bare exception.
TEST(Ulimit, OnMemoryIsALimitOfThePlan) {
  Job job;
  for (const std::string limit : {"-v 100000", "-v 150000", "-d 60000"}) {
    const Outcome refused = Under(job, limit);
    EXPECT_EQ(refused.code, 3) << limit << "\n" << refused.Text();
    EXPECT_TRUE(Holds(refused.err, "does not fit")) << refused.err;
    EXPECT_TRUE(Holds(refused.err, "are available (ulimit " + limit.substr(0, 2))) << refused.err;
    EXPECT_FALSE(Exists(job.run_dir()));
  }
  for (const std::string limit : {"-v 400000", "-d 200000"}) {
    EXPECT_EQ(Under(job, limit).code, 0) << limit;
    std::filesystem::remove_all(job.run_dir());
  }
}

// Less than a rank takes before it can plan: its threads are what is refused.
TEST(Ulimit, OnMemoryIsNamedWhereThereIsNoRoomForAThread) {
  Job job;
  for (const std::string limit : {"-v 25000", "-v 30000", "-v 40000", "-d 10000", "-d 20000"}) {
    for (const Strings& front : {Strings(), kLaunch}) {
      const Outcome refused = Under(job, limit, front);
      EXPECT_EQ(refused.code, 3) << limit << "\n" << refused.Text();
      EXPECT_TRUE(Holds(refused.Text(), "(ulimit " + limit.substr(0, 2))) << refused.Text();
      EXPECT_FALSE(Holds(refused.Text(), "Resource temporarily unavailable")) << refused.Text();
      // Nobody waits for who has failed.
      EXPECT_FALSE(Holds(refused.Text(), "did not come within")) << refused.Text();
      EXPECT_FALSE(Exists(job.run_dir()));
    }
  }
  const std::string text = job.dir().Write("text.txt", std::string(100000, 'a'));
  const Outcome many = CallUnder(job.dir(), "-v 400000",
                                 {"tokenize", "--tokenizer", "bytes", "--out", job.dir() / "tokens",
                                  "--threads", "1000", text});
  EXPECT_EQ(many.code, 3) << many.Text();
  EXPECT_TRUE(Holds(many.err, "cannot start a thread that tokenises: ")) << many.err;
}

TEST(Ulimit, OnFilesAndStackIsNamedWhereItIsTooLow) {
  Job job;
  for (const std::string limit : {"-n 12", "-s 64"}) {
    for (const Strings& front : {Strings(), kLaunch}) {
      const Outcome refused = Under(job, limit, front);
      EXPECT_EQ(refused.code, 1) << refused.Text();
      EXPECT_TRUE(Holds(refused.err, "ulimit " + limit.substr(0, 2))) << refused.err;
      EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
    }
  }
  EXPECT_FALSE(Exists(job.run_dir()));
  // The least that is taken is enough.
  EXPECT_EQ(Under(job, "-n 64 -s 1024").code, 0);
}

// Whoever can reach the store's port: the files that a save needs are left to the rank.
TEST(Ulimit, OnFilesLeavesSomeWhereStrangersTakeAllTheyGet) {
  Job job;
  const int port = FreePort();
  std::string command = "ulimit -n 64 && exec " + BinaryPath();
  for (const std::string& argument :
       job.LaunchArguments(2, {"train.steps=100000000", "checkpoint.every=20"},
                           {"--rdzv-endpoint", "127.0.0.1:" + std::to_string(port)})) {
    command += " '" + argument + "'";
  }
  Process::Options options;
  options.program = "bash";
  options.output_directory = job.dir().path();
  Process run({"-c", command}, options);
  ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 20; })) << run.Out();
  std::vector<UniqueFd> strangers;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto saves = [&] { return OfKind(ReadMetrics(job.run_dir()), "checkpoint").size(); };
  const size_t before = saves();
  for (int i = 0; i < 200; ++i) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_TRUE(Eventually([&] { return saves() >= before + 3 || !run.Running(); }));
  run.Signal(SIGTERM);
  const Outcome outcome = run.Wait();
  EXPECT_EQ(outcome.code, 75) << outcome.Text();
}

}  // namespace
}  // namespace fsdp::e2e
