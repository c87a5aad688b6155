#include "models/regnet/regnet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/model_promises.h"
#include "trainer/data/synthetic/synthetic.h"

namespace fsdp::testing {
namespace {

RegNetConfig TinyRegNet(bool y) {
  return {.image_size = 11,
          .num_channels = 3,
          .num_labels = 7,
          .embedding_size = 8,
          .hidden_sizes = {8, 18},
          .depths = {1, 2},
          .groups_width = 6,
          .squeeze_excitation = y,
          .downsample_in_first_stage = y};
}

TinyRun RunOf(const RegNetConfig& config, bool sync) {
  TinyRun run;
  run.model = [config] { return std::make_unique<RegNet>(config); };
  run.rows = std::make_shared<SyntheticRows>(
      run.model()->Inputs(0), std::vector<SyntheticRows::Source>{{.seed = 5}}, /*seed=*/0);
  run.options.executor.max_norm = 0;
  run.options.executor.batch_norm_sync = sync;
  return run;
}

class RegNetRuns : public ::testing::TestWithParam<bool> {
 protected:
  static RegNetConfig Config() { return TinyRegNet(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, RegNetRuns, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Y" : "X"; });

TEST_P(RegNetRuns, StrategyAndRecomputationChangeNoBit) {
  for (const bool sync : {false, true}) {
    ExpectStrategyAndRecomputationChangeNoBit(RunOf(Config(), sync));
  }
}

TEST_P(RegNetRuns, TheRootChangesNoBit) { ExpectTheRootChangesNoBit(RunOf(Config(), true)); }

TEST_P(RegNetRuns, OffloadChangesNoBit) { ExpectOffloadChangesNoBit(RunOf(Config(), true)); }

TEST_P(RegNetRuns, GradientIsThatOfDifferences) {
  RegNetConfig config = Config();
  config.image_size = 22;  // Norms of few values are bent too much for differences.
  ExpectGradientOfDifferences(RunOf(config, false));
}

void ExpectNear(const Tensors& got, const Tensors& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{values[i]} - double{got.at(name)[i]}, 2);
      norm += std::pow(double{values[i]}, 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + 1e-6) << name;
  }
}

// One rank whose micro-batch is all of theirs, and worlds of which some ranks have fewer samples,
// or none: of 6 samples 4 + 2, 2 + 2 + 2 and 2 + 2 + 2 + 0 + 0.
TEST_P(RegNetRuns, WorldsAgreeWhereStatisticsAreOfAllRanks) {
  TinyRun run = RunOf(Config(), /*sync=*/true);
  run.options.executor.micro_batch_size = 6;
  const TinyResult one = Train(run);
  for (const int world : {2, 3, 5}) {
    run.world = world;
    run.options.executor.micro_batch_size = world == 2 ? 4 : 2;
    const TinyResult got = Train(run);
    for (size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(got.losses[s] / one.losses[s], 1, 1e-5) << world;
      EXPECT_NEAR(got.grad_norms[s] / one.grad_norms[s], 1, 1e-4) << world;
    }
    EXPECT_NEAR(got.eval_loss / one.eval_loss, 1, 1e-5) << world;
    ExpectNear(got.parameters, one.parameters, 1e-5);
    ExpectNear(got.buffers, one.buffers, 1e-5);
    run.options.executor.batch_norm_sync = false;  // And elsewhere they do not.
    EXPECT_GT(std::abs(Train(run).losses[0] / one.losses[0] - 1), 1e-4) << world;
    run.options.executor.batch_norm_sync = true;
  }
}

// A micro-batch of 8 with 6 samples has two rows that count for nothing.
TEST_P(RegNetRuns, RowsLeftOverChangeNothing) {
  TinyRun run = RunOf(Config(), /*sync=*/false);
  run.options.executor.micro_batch_size = 6;
  const TinyResult whole = Train(run);
  run.options.executor.micro_batch_size = 8;
  const TinyResult more = Train(run);
  ExpectNear(more.parameters, whole.parameters, 1e-6);
  ExpectNear(more.buffers, whole.buffers, 1e-6);
}

// Batch norms compute in fp32 and remember in it.
TEST_P(RegNetRuns, SixteenBitsAreNearFp32) {
  TinyRun run = RunOf(Config(), /*sync=*/false);
  run.steps = 2;
  run.options.executor.micro_batch_size = 6;
  const TinyResult want = Train(run);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    run.options.executor.mixed_precision.param_dtype = dtype;
    const TinyResult got = Train(run);
    for (size_t s = 0; s < want.losses.size(); ++s) {
      EXPECT_NEAR(got.losses[s] / want.losses[s], 1, 0.03) << Name(dtype);
      EXPECT_NEAR(got.grad_norms[s] / want.grad_norms[s], 1, 0.1) << Name(dtype);
    }
    ExpectNear(got.buffers, want.buffers, 0.05);
  }
}

TEST_P(RegNetRuns, NothingIsGeneratedFromIt) {
  EXPECT_EQ(RegNet(Config()).autoregressive(), nullptr);
}

}  // namespace
}  // namespace fsdp::testing
