// For ThreadSanitizer: a covering set of settings, each step issued as a whole before any stream
// starts, so that no lock of a queue stands in for a missing wait.
#include <gtest/gtest.h>

#include <string>

#include "tests/trainer/engine/settings.h"

namespace fsdp::testing {
namespace {

TEST(Parked, PairwiseSettings) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kPairwiseSeed));
  for (TinyRun run : PairwiseRuns(RunsApartAgain())) {
    run.ranks = RunThreadRanks;
    run.check = false;  // ThreadSanitizer is a net of its own.
    run.steps = 4;
    const TinyResult plain = Train(run);
    run.park = true;
    EXPECT_EQ(FirstDifference(Train(run), plain), "") << Describe(run);
  }
}

TEST(Parked, ComputeThreads) {
  TinyRun run;
  run.world = 2;
  run.park = true;
  run.check = false;
  run.options.executor.threads = 2;
  run.config.hidden_size = 48;
  run.config.intermediate_size = 200;
  run.config.max_position_embeddings = 40;
  run.options.executor.sample_length = 40;
  run.options.executor.recompute = Recompute::kSelective;
  EXPECT_GT(Train(run).losses.at(0), 0);
}

}  // namespace
}  // namespace fsdp::testing
