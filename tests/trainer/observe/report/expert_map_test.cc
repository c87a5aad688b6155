#include "trainer/observe/report/expert_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/trainer/observe/report/run_directory_files.h"
#include "trainer/observe/report/run_history.h"

namespace fsdp {
namespace {

size_t Times(const std::string& text, const std::string& what) {
  size_t times = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++times;
  return times;
}

TEST(ExpertMap, IsDarkerWhereAnExpertHasMore) {
  EXPECT_EQ(ExpertMap({}), "");
  // Means of 4 and 2: shades none, a quarter, the mean, and twice and more; a layer of even loads.
  const std::string map = ExpertMap({.step = 1200, .loads = {{0, 1, 4, 11}, {2, 2, 2, 2}}});
  EXPECT_NE(map.find("at step 1,200"), std::string::npos) << map;
  EXPECT_NE(map.find("viewBox=\"0 0 4 2\""), std::string::npos) << map;
  EXPECT_EQ(Times(map, "h1v1h-1"), 7u);  // All but the expert without a token.
  EXPECT_NE(map.find("0.12\" d=\"M1 0h1v1h-1\""), std::string::npos) << map;
  EXPECT_NE(map.find("0.48\" d=\"M2 0h1v1h-1M0 1h1v1h-1M1 1"), std::string::npos) << map;
  EXPECT_NE(map.find("0.96\" d=\"M3 0h1v1h-1\""), std::string::npos) << map;
}

TEST(ExpertMap, OfManyIsSmall) {
  const ExpertsRecord many{.step = 1, .loads = {94, std::vector<int64_t>(128, 3)}};
  EXPECT_LT(ExpertMap(many).size(), 94u * 128 * 16 + 1000);
}

// The last record counts; curves are of the steps.
TEST(ExpertMap, IsOfARunsLastRecord) {
  const std::string directory = FreshDirectory("experts");
  StepRecord step = Step(1);
  step.experts = ExpertLoads{.rows = 8, .max_load = 1.5, .entropy = 0.75};
  Put(directory + "/metrics.jsonl",
      ToJson(RunOf("a", 2)) + "\n" + ToJson(step) + "\n" + ToJson(ExpertsRecord{1, {{1, 7}}}) +
          "\n" + ToJson(ExpertsRecord{2, {{5, 3}, {4, 4}}}) + "\n" +
          "{\"kind\": \"experts\", \"step\": 3, \"loads\": [[1, \"x\"]]}\n");
  const RunHistory run = ReadRun(directory, 40);
  EXPECT_EQ(run.loads.step, 2);
  EXPECT_EQ(run.loads.loads, (std::vector<std::vector<int64_t>>{{5, 3}, {4, 4}}));
  EXPECT_EQ(run.max_load.last().y, 1.5);
  EXPECT_EQ(run.expert_entropy.last().y, 0.75);
  EXPECT_EQ(run.broken, 1);
}

}  // namespace
}  // namespace fsdp
