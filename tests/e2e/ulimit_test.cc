// What a shell's ulimit leaves a run. Not of a sanitizer's binary, which reserves terabytes of
// addresses before it begins.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/e2e/run_binary.h"

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

}  // namespace
}  // namespace fsdp::e2e
