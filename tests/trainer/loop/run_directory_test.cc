#include "trainer/loop/run_directory.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/kill_at_call.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_prefix.h"
#include "trainer/observe/metrics.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

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
  WriteAtomicFile(run.metrics(), kRecords);
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

// Records without a step are records, too.
TEST(GoBack, KeepsWhateverIsThere) {
  const RunDirectory run = RunOf("other", {"step_2", "step_4"});
  const std::string records = R"({"kind": "eval", "step": 4, "loss": 1})"
                              "\n";
  WriteAtomicFile(run.metrics(), records);
  EXPECT_EQ(ReadWholeFile(GoBack(run, 2).metrics), records);
}

// Whether or not this start will ever write such a file itself.
TEST(OpenRunDirectory, RemovesWhatAKilledRunWasWriting) {
  const RunDirectory run = RunOf("killed", {});
  const Strings left = {run.checkpoints() + "/latest.fsdp-tmp",
                        run.path + "/metrics.1.jsonl.fsdp-tmp"};
  const auto open = [&] {
    const Recipe recipe =
        ParseRecipe({{"recipe", "model: {family: gpt2}\ndata: {train: {source: synthetic}}\n"}},
                    {"run.dir=" + run.path});
    MemoryStore store(/*timeout_s=*/60);
    OpenRunDirectory(recipe, {}, store, /*rank=*/0, /*world=*/1);
  };
  for (const std::string& path : left) std::ofstream(path) << "step_";
  open();
  for (const std::string& path : left) EXPECT_FALSE(fs::exists(path)) << path;
  const AtomicFile writing(run.checkpoints() + "/latest");  // Somebody lives and writes it.
  open();
  EXPECT_TRUE(fs::exists(left[0]));
}

TEST(OpenRunDirectory, RefusesADirectoryOfOtherThings) {
  const std::string path = ::testing::TempDir() + "/others";
  const auto open = [&]() -> std::string {
    const Recipe recipe =
        ParseRecipe({{"recipe", "model: {family: gpt2}\ndata: {train: {source: synthetic}}\n"}},
                    {"run.dir=" + path});
    MemoryStore store(/*timeout_s=*/60);
    try {
      OpenRunDirectory(recipe, {}, store, /*rank=*/0, /*world=*/1);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "taken";
  };
  const auto with = [&](const Strings& files, const Strings& directories = {}) {
    fs::remove_all(path);
    fs::create_directory(path);
    for (const std::string& name : files) std::ofstream(path + "/" + name) << "x";
    for (const std::string& name : directories) fs::create_directory(path + "/" + name);
    return open();
  };
  const std::string refused = path + ": is no run's directory, and not empty: it holds ";
  EXPECT_EQ(with({"corpus.txt", "b.txt"}),
            refused + "b.txt. Give run.dir another, new or empty, or take away what is in it");
  EXPECT_FALSE(fs::exists(path + "/checkpoints"));
  EXPECT_EQ(with({}, {"texts"}).find(refused + "texts"), 0u);
  EXPECT_EQ(with({}), "taken");
  EXPECT_EQ(with({".hidden", "slurm-7.out", "rank.log"}), "taken");
  EXPECT_EQ(with({"notes.txt"}, {"logs"}), "taken");  // A run that ended before its first record.
  EXPECT_EQ(open(), "taken");
}

std::string StepsUpTo(int64_t last) {
  std::string text;
  for (int64_t step = 1; step <= last; ++step) text += ToJson(StepRecord{.step = step}) + "\n";
  return text;
}

FilePrefix PrefixOf(const std::string& text) {
  PrefixHash hash;
  hash.Update(text);
  return hash.Taken();
}

// From the first call of going back to the last one of dropping the records of the steps it leaves:
// whichever checkpoint `latest` names, its records are those that it knows, and those of the steps
// that are left are in the file or beside it.
TEST(GoBack, KilledAtEverySystemCallLosesNoRecord) {
  const std::string old = StepsUpTo(6), kept = StepsUpTo(2);
  int count = 0, back = 0, cut = 0;
  for (bool killed = true; killed; ++count) {
    ASSERT_LT(count, 5000);
    const RunDirectory run = RunOf("kill", {"step_2", "step_4", "step_6"});
    const std::string latest = run.checkpoints() + "/latest";
    WriteAtomicFile(latest, "step_6");
    WriteAtomicFile(run.metrics(), old);
    const auto go_back = [&] {
      GoBack(run, 2);
      MetricsWriter::Resume(run.metrics(), 2);
      return true;
    };
    const auto is_beside = [&] {
      for (const auto& entry : fs::directory_iterator(run.path)) {
        const std::string name = entry.path().filename();
        if (name.starts_with("metrics.") && name != "metrics.jsonl" && name.ends_with(".jsonl")) {
          if (ReadWholeFile(entry.path()) == old) return true;
        }
      }
      return false;
    };
    killed = testing::KillAtCall(count, go_back);
    SCOPED_TRACE("killed at call " + std::to_string(count));
    const std::string named = ReadWholeFile(latest), records = ReadWholeFile(run.metrics());
    ASSERT_TRUE(named == "step_6" || named == "step_2") << named;
    if (named == "step_6") {
      ASSERT_EQ(HowItDiffers(run.metrics(), PrefixOf(old)), "");
    } else {
      ++back;
      ASSERT_EQ(HowItDiffers(run.metrics(), PrefixOf(kept)), "");
      ASSERT_TRUE(is_beside());
      cut += records == kept;
      // A start that goes on from `latest`.
      MetricsWriter::Resume(run.metrics(), 2);
      ASSERT_EQ(ReadWholeFile(run.metrics()), kept);
      ASSERT_TRUE(is_beside());
    }
    // Or one that goes back again.
    ASSERT_TRUE(go_back());
    ASSERT_EQ(ReadWholeFile(run.metrics()), kept);
    ASSERT_TRUE(is_beside());
    ASSERT_EQ(ReadWholeFile(latest), "step_2");
    ASSERT_FALSE(fs::exists(run.checkpoints() + "/step_6"));
  }
  std::printf(
      "going back killed at %d system calls; `latest` had gone back after %d, records after %d\n",
      count - 1, back, cut);
  EXPECT_GT(count - 1 - back, 5);
  EXPECT_GT(back - cut, 5);
  EXPECT_GT(cut, 1);
}

}  // namespace
}  // namespace fsdp
