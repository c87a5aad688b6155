#include "trainer/loop/run_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/whole_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

const std::string kRecords = R"({"kind": "step", "step": 4, "loss": 1})"
                             "\n";

// A run with records and directories of checkpoints.
RunDirectory RunOf(const std::string& name, const Strings& checkpoints) {
  const RunDirectory run{::testing::TempDir() + "/" + name};
  fs::remove_all(run.path);
  fs::create_directories(run.checkpoints());
  for (const std::string& step : checkpoints) fs::create_directory(run.checkpoints() + "/" + step);
  WriteWholeFile(run.metrics(), kRecords);
  return run;
}

TEST(GoBack, KeepsTheRecordsOfWhatItLeaves) {
  const RunDirectory run = RunOf("back", {"step_2", "step_4", "step_6"});
  for (const char* kept : {"/metrics.1.jsonl", "/metrics.2.jsonl"}) {
    const SetAside aside = GoBack(run, 2);
    EXPECT_EQ(aside.checkpoints, (Strings{"step_4.aside", "step_6.aside"}));
    EXPECT_EQ(aside.metrics, run.path + kept);
    EXPECT_EQ(ReadWholeFile(aside.metrics), kRecords);
    EXPECT_EQ(ReadWholeFile(run.metrics()), kRecords);
    for (const char* step : {"/step_4", "/step_6"}) {
      fs::rename(run.checkpoints() + step + ".aside", run.checkpoints() + step);
    }
  }
}

TEST(GoBack, LeavesNothingWhereItIsTheNewest) {
  const RunDirectory run = RunOf("newest", {"step_2"});
  const SetAside aside = GoBack(run, 2);
  EXPECT_EQ(aside.checkpoints, Strings{});
  EXPECT_EQ(aside.metrics, "");
  EXPECT_FALSE(fs::exists(run.path + "/metrics.1.jsonl"));
}

// Whatever ends it on the way, the records are kept by then: the next start finds no later
// checkpoints, and drops them.
TEST(GoBack, KeepsTheRecordsBeforeAnythingMoves) {
  const RunDirectory run = RunOf("crash", {"step_2", "step_4", "latest"});
  EXPECT_THROW(GoBack(run, 2), CheckpointError);  // `latest` is a directory.
  EXPECT_TRUE(fs::exists(run.checkpoints() + "/step_4"));
  EXPECT_EQ(ReadWholeFile(run.path + "/metrics.1.jsonl"), kRecords);
}

}  // namespace
}  // namespace fsdp
