// No bit of a training run changes unless a commit says which and why: see golden.h.
#include "tests/e2e/golden.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdp::e2e {
namespace {

class Golden : public ::testing::TestWithParam<GoldenRun> {};

TEST_P(Golden, GivesTheSameBits) {
  const GoldenRun& run = GetParam();
  const TempDir directory;
  const std::string recipe = PutInputs(directory), run_directory = directory / "run";
  const auto train = [&](int world, const Strings& settings) {
    Strings flags = {"--config", recipe, "--set", "run.dir=" + run_directory};
    for (const std::string& setting : Settings(settings, directory.path())) {
      flags.insert(flags.end(), {"--set", setting});
    }
    if (world > 1) {
      const Strings launch = {"launch", "--nproc-per-node", std::to_string(world), "--"};
      flags.insert(flags.begin(), launch.begin(), launch.end());
    }
    const Outcome outcome = Call(flags, run.Environment());
    EXPECT_EQ(outcome.code, 0) << run.Describe() << "\n" << outcome.Text();
    return outcome.code == 0;
  };
  ASSERT_TRUE(train(run.world, run.settings));
  if (run.resume_at > 0) {
    Strings settings = run.settings;
    settings.push_back("checkpoint.resume=" + std::to_string(run.resume_at));
    settings.insert(settings.end(), run.resume_settings.begin(), run.resume_settings.end());
    ASSERT_TRUE(train(run.resume_world, settings));
  }
  ExpectGolden(run, run_directory);
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(GoldenRuns()),
                         [](const auto& info) { return info.param.name; });

TEST(GoldenFileTest, HoldsTheseRuns) {
  std::set<std::string> runs;
  for (const GoldenRun& run : GoldenRuns()) runs.insert(run.name);
  const std::vector<std::string> names = GoldenFile().Names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), runs);
}

}  // namespace
}  // namespace fsdp::e2e
