// The bits of processes, from ranks that are threads of this one.
#include <gtest/gtest.h>

#include "tests/e2e/golden.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp::e2e {
namespace {

class GoldenThreads : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenThreads, GiveTheBitsOfProcesses) {
  const GoldenRun run = GoldenRunOf(GetParam());
  const TempDir directory;
  Strings settings = Settings(run.settings, directory.path());
  settings.push_back("run.dir=" + directory / "run");
  const Recipe recipe = LoadRecipe({PutInputs(directory)}, settings);
  for (const testing::Outcome& outcome :
       testing::RunThreadRanks(run.world, [&](testing::Rank& rank) -> std::string {
         fsdp::Job job;
         job.rank = rank.rank;
         job.world = rank.size;
         job.local_world = rank.size;
         job.store = rank.store;
         job.connect = [&](const std::string& name, const RankGroup& group) {
           return rank.join_group(name, group, {.timeout_s = recipe.run.timeout_s});
         };
         testing::Require(TrainRank(recipe, job) == ExitCode::kDone, "stopped");
         return "";
       })) {
    ASSERT_EQ(outcome.error, "");
  }
  ExpectGolden(run, directory / "run");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenThreads,
                         ::testing::Values("many_gpt2", "many_llama", "many_replicas"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::e2e
