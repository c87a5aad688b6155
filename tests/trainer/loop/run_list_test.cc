#include "trainer/loop/run_list.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/fresh_directory.h"

namespace fsdp {
namespace {

void Put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(ListRuns, SaysTheLastStepAndItsLoss) {
  const std::string runs = testing::FreshDirectory("runs");
  Put(runs + "/b/metrics.jsonl",
      "{\"kind\": \"step\", \"step\": 1, \"loss\": 9.5}\n"
      "{\"kind\": \"step\", \"step\": 2, \"loss\": 2.5}\n"
      "{\"kind\": \"eval\", \"step\": 2, \"loss\": 7.5}\n{\"kind\": \"step\", \"step\": 3, \"l");
  Put(runs + "/a/metrics.jsonl",
      std::string(100'000, '\n') + "{\"kind\": \"step\", \"step\": 7, \"loss\": null}\n");
  Put(runs + "/broken/metrics.jsonl", "[1]\n{\"kind\": 5}\n{\"kind\": \"step\"}\n");
  std::filesystem::create_directories(runs + "/pipe/metrics.jsonl");  // No file at all.
  std::filesystem::create_directories(runs + "/saved/checkpoints");
  Put(runs + "/.hidden/metrics.jsonl", "");
  Put(runs + "/no_run/text", "");
  Put(runs + "/file", "");
  const std::vector<RunEntry> all = ListRuns(runs);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].name, "a");
  EXPECT_EQ(all[0].step, 7);
  EXPECT_EQ(all[0].loss, std::nullopt);
  EXPECT_EQ(all[1].name, "b");
  EXPECT_EQ(all[1].path, runs + "/b");
  EXPECT_EQ(all[1].step, 2);
  EXPECT_EQ(all[1].loss, 2.5);
  EXPECT_EQ(all[1].checkpoint, std::nullopt);
  EXPECT_GT(all[1].modified, 1.7e9);
  EXPECT_EQ(all[2].name, "broken");
  EXPECT_EQ(all[2].step, std::nullopt);
  EXPECT_EQ(all[3].name, "pipe");
  EXPECT_EQ(all[4].name, "saved");
  EXPECT_TRUE(ListRuns(runs + "/none").empty());
}

}  // namespace
}  // namespace fsdp
