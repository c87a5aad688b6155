// What a shell's ulimit leaves a run. Not of a sanitizer's binary, which reserves terabytes of
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

// The binary behind `ulimit limits`, with `arguments` before the flags of the job.
Outcome Under(const Job& job, const std::string& limits, const std::string& arguments = "") {
  std::string flags;
  for (const std::string& flag : job.Flags()) flags += " '" + flag + "'";
  Process::Options options;
  options.program = "bash";
  options.output_directory = job.dir().path();
  const std::string command = "ulimit " + limits + " && exec " + BinaryPath() + arguments + flags;
  return Process({"-c", command}, options).Wait();
}

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

TEST(Ulimit, OnFilesAndStackIsNamedWhereItIsTooLow) {
  Job job;
  for (const std::string limit : {"-n 12", "-s 64"}) {
    for (const std::string arguments : {"", " launch --nproc-per-node 2 --"}) {
      const Outcome refused = Under(job, limit, arguments);
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
