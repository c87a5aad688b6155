#include "trainer/checkpoint/checkpoint_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::ErrorOf;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

World Two(int shards) {
  World world;
  world.world = 2;
  world.shards = shards;
  return world;
}

TEST(ListCheckpointsTest, SaysWhichCountAndWhy) {
  const std::string run = FreshDirectory("list"), dir = run + "/checkpoints";
  for (const int64_t step : {1, 2, 10}) ASSERT_EQ(Save(Two(2), dir, step), Strings(2));
  ASSERT_EQ(Save(Two(1), dir, 11), Strings(2));
  ASSERT_EQ(Save(Two(2), dir, 12), Strings(2));
  fs::resize_file(dir + "/step_2/rank_1.safetensors", 7);
  fs::remove(dir + "/step_10/manifest.json");
  fs::copy(dir + "/step_1", dir + "/step_1.old");
  fs::rename(dir + "/step_12", dir + "/step_12.old");
  fs::create_directory(dir + "/step_13.tmp");
  std::ofstream(dir + "/step_13.tmp/rank_0.safetensors") << "12345";
  fs::create_directory(dir + "/notes");
  fs::create_directory(dir + "/step_007");

  for (const std::string& directory : {run, dir}) {
    const std::vector<CheckpointEntry> list = ListCheckpoints(directory);
    const struct {
      const char* name;
      int64_t step;
      int world, shards;
      const char* why;  // Empty: complete.
    } want[] = {
        {"step_1", 1, 2, 2, ""},
        {"step_1.old", 1, 2, 2, "set aside: there is another of its step"},
        {"step_2", 2, 2, 2, "rank_1.safetensors: has 7 bytes, want "},
        {"step_10", 10, 0, 0, "manifest.json: No such file"},
        {"step_11", 11, 2, 1, ""},
        {"step_12.old", 12, 2, 2, ""},
        {"step_13.tmp", 13, 0, 0, "left by a run that ended while it wrote"},
    };
    ASSERT_EQ(list.size(), std::size(want));
    for (size_t i = 0; i < list.size(); ++i) {
      const CheckpointEntry& entry = list[i];
      EXPECT_EQ(entry.path, dir + "/" + want[i].name);
      EXPECT_EQ(entry.step, want[i].step);
      EXPECT_EQ(entry.world, want[i].world) << entry.path;
      EXPECT_EQ(entry.shards, want[i].shards) << entry.path;
      EXPECT_EQ(entry.complete, *want[i].why == '\0') << entry.path << entry.why;
      EXPECT_NE(entry.why.find(want[i].why), std::string::npos) << entry.why;
      EXPECT_EQ(entry.why.empty(), entry.complete) << entry.why;
      EXPECT_EQ(entry.latest, entry.step == 12);  // As FindLatestCheckpoint says.
      int64_t bytes = 0;
      for (const auto& file : fs::directory_iterator(entry.path)) {
        bytes += static_cast<int64_t>(file.file_size());
      }
      EXPECT_EQ(entry.bytes, bytes);
      const double now =
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
              .count();
      EXPECT_LE(entry.modified, now);
      EXPECT_GT(entry.modified, now - 3600);
    }
  }
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_12.old");
}

TEST(ListCheckpointsTest, NothingIsNoMistakeButNoDirectoryIs) {
  const std::string run = FreshDirectory("nothing");
  EXPECT_TRUE(ListCheckpoints(run).empty());
  EXPECT_NE(ErrorOf([&] { ListCheckpoints(run + "/x"); }).find("x: is not a directory"),
            std::string::npos);
  // `latest` names one, and none is complete: the list shows why.
  ASSERT_EQ(Save(Two(2), run, 3), Strings(2));
  fs::remove(run + "/step_3/rank_0.safetensors");
  const std::vector<CheckpointEntry> list = ListCheckpoints(run);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_FALSE(list[0].latest || list[0].complete);
  EXPECT_TRUE(list[0].published);
}

// The step that `best` names, by its file, by FindBestCheckpoint() and in the list; 0: none.
int64_t Best(const std::string& dir) {
  const std::string found = FindBestCheckpoint(dir).value_or("");
  std::string named;
  std::ifstream(dir + "/best") >> named;
  EXPECT_EQ(found, named.empty() ? "" : dir + "/" + named);
  for (const CheckpointEntry& entry : ListCheckpoints(dir)) {
    EXPECT_EQ(entry.best, entry.path == found) << entry.path;
  }
  return StepOf(named).value_or(0);
}

TEST(BestTest, NamesTheLeastLossOfThoseKept) {
  const std::string dir = FreshDirectory("best");
  World world = Two(2);
  world.losses = {{2, 3.0}, {3, 1.0}, {4, 2.0}, {5, 1.0}, {7, 0.5}};
  const auto best_after = [&](int64_t step, int64_t keep_last) {
    EXPECT_EQ(Save(world, dir, step, keep_last), Strings(2));
    return Best(dir);
  };
  EXPECT_EQ(best_after(1, 0), 0);  // It has no loss.
  EXPECT_EQ(best_after(2, 0), 2);
  EXPECT_EQ(best_after(3, 0), 3);
  EXPECT_EQ(best_after(4, 0), 3);
  EXPECT_EQ(best_after(5, 0), 3);  // As low, but later.
  EXPECT_EQ(best_after(6, 3), 5);  // 4, 5 and 6 stay.
  EXPECT_EQ(best_after(7, 3), 7);
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_7");
  EXPECT_EQ(ListCheckpoints(dir).front().loss, 1.0);
  GoBackTo(dir, 6);
  EXPECT_EQ(Best(dir), 5);
  world.losses[5] = 9;
  world.losses[6] = 4;
  EXPECT_EQ(best_after(6, 0), 5);
  EXPECT_EQ(best_after(5, 0), 5);  // Later ones do not count.
  fs::remove_all(dir + "/step_5");
  EXPECT_EQ(FindBestCheckpoint(dir), std::nullopt);
  EXPECT_EQ(best_after(8, 2), 6);
  EXPECT_EQ(best_after(9, 1), 0);
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_9");
}

TEST(ResolveCheckpointTest, TakesACheckpointOrTheLatestOfARun) {
  const std::string run = FreshDirectory("resolve"), dir = run + "/checkpoints";
  const auto error = [&](const std::string& path) {
    return ErrorOf([&] { ResolveCheckpoint(path); });
  };
  fs::create_directory(dir);
  EXPECT_NE(error(run).find("no checkpoint below it"), std::string::npos);
  for (const int64_t step : {4, 5}) ASSERT_EQ(Save(Two(2), dir, step), Strings(2));
  EXPECT_EQ(ResolveCheckpoint(dir + "/step_4"), dir + "/step_4");
  EXPECT_EQ(ResolveCheckpoint(dir), dir + "/step_5");
  EXPECT_EQ(ResolveCheckpoint(run), dir + "/step_5");
  fs::remove(dir + "/step_4/manifest.json");
  EXPECT_NE(error(dir + "/step_4").find("step_4: holds no manifest.json: not complete"),
            std::string::npos);
  EXPECT_NE(error(run + "/none").find("is not a directory"), std::string::npos);
}

}  // namespace
}  // namespace fsdp
