#include "models/vit/vit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/model_promises.h"
#include "trainer/data/synthetic/synthetic.h"

namespace fsdp::testing {
namespace {

VitConfig TinyVit(bool deep, double dropout = 0) {
  VitConfig config{.image_size = 6,
                   .patch_size = 2,
                   .num_channels = 3,
                   .num_labels = 11,
                   .hidden_size = 24,
                   .intermediate_size = 52,
                   .num_hidden_layers = 3,
                   .num_attention_heads = 3,
                   .head_dim = 8,
                   .initializer_range = 0.2,
                   .hidden_dropout_prob = dropout,
                   .attention_dropout = dropout};
  if (deep) {
    config.head_dim = 5;
    config.qkv_bias = false;
    config.reattention = Reattention::kLayerNorm;
    config.layer_norm_epsilon = 1e-5;
  }
  return config;
}

TinyRun RunOf(const VitConfig& config) {
  TinyRun run;
  run.model = [config] { return std::make_unique<Vit>(config); };
  run.rows = std::make_shared<SyntheticRows>(
      run.model()->Inputs(0), std::vector<SyntheticRows::Source>{{.seed = 5}}, /*seed=*/0);
  run.options.executor.max_norm = 0;
  return run;
}

class VitRuns : public ::testing::TestWithParam<bool> {
 protected:
  static VitConfig Config(double dropout = 0) { return TinyVit(GetParam(), dropout); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, VitRuns, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Deep" : "Plain"; });

TEST_P(VitRuns, StrategyAndRecomputationChangeNoBit) {
  ExpectStrategyAndRecomputationChangeNoBit(RunOf(Config(/*dropout=*/0.2)));
}

TEST_P(VitRuns, TheRootChangesNoBit) { ExpectTheRootChangesNoBit(RunOf(Config(/*dropout=*/0.2))); }

TEST_P(VitRuns, BranchesAsBlocksChangeNoBit) {
  VitConfig config = Config(/*dropout=*/0.2);
  TinyRun run = RunOf(config);
  run.world = 2;
  const TinyResult layers = Train(run);
  config.branches_are_blocks = true;
  TinyRun branches = RunOf(config);
  branches.world = 2;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    branches.options.executor.recompute = recompute;
    const TinyResult got = Train(branches);
    EXPECT_EQ(got.losses, layers.losses);
    EXPECT_EQ(got.gradients, layers.gradients);
    EXPECT_EQ(got.parameters, layers.parameters);
  }
}

TEST_P(VitRuns, OffloadChangesNoBit) { ExpectOffloadChangesNoBit(RunOf(Config(/*dropout=*/0.2))); }

TEST_P(VitRuns, RanksAndMicroBatchesDropTheSame) {
  ExpectRanksAndMicroBatchesAgree(RunOf(Config(/*dropout=*/0.2)));
}

TEST_P(VitRuns, GradientIsThatOfDifferences) {
  ExpectGradientOfDifferences(RunOf(Config(/*dropout=*/0.2)));
}

// Each rate acts while training, and none in evaluations.
TEST_P(VitRuns, DropsInTrainingAlone) {
  const auto first_step = [](const VitConfig& config) {
    TinyRun run = RunOf(config);
    run.steps = 1;
    run.options.lr.lr = 0;
    run.eval_step = 1;
    return Train(run);
  };
  VitConfig hidden = Config(), attention = Config();
  hidden.hidden_dropout_prob = attention.attention_dropout = 0.2;
  const TinyResult none = first_step(Config());
  const TinyResult some = first_step(hidden), others = first_step(attention);
  for (const TinyResult* dropped : {&some, &others}) {
    EXPECT_GT(std::abs(dropped->losses[0] - none.losses[0]), 1e-5);
    EXPECT_EQ(dropped->eval_loss, none.eval_loss);
    EXPECT_EQ(dropped->eval_second_sum, none.eval_second_sum);
  }
}

TEST_P(VitRuns, SixteenBitsAreNearFp32) {
  VitConfig config = Config();
  config.initializer_range = 0.05;
  TinyRun run = RunOf(config);
  run.steps = 2;
  const TinyResult want = Train(run);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    run.options.executor.mixed_precision.param_dtype = dtype;
    const TinyResult got = Train(run);
    for (size_t s = 0; s < want.losses.size(); ++s) {
      EXPECT_NEAR(got.losses[s] / want.losses[s], 1, 0.02) << Name(dtype);
      EXPECT_NEAR(got.grad_norms[s] / want.grad_norms[s], 1, 0.05) << Name(dtype);
    }
  }
}

// Adapters hang on linear layers: a mix of heads has none.
TEST_P(VitRuns, AdaptersTrainAlone) {
  TinyRun run = RunOf(Config());
  run.lora = LoraOptions{.rank = 2, .targets = {"*"}};
  const TinyResult one = Train(run);
  EXPECT_EQ(one.gradients.size(), 2u * 3 * (GetParam() ? 4 : 6));
  run.world = 2;
  const TinyResult two = Train(run);
  for (size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(two.losses[s] / one.losses[s], 1, 1e-5);
  }
}

TEST_P(VitRuns, NothingIsGeneratedFromIt) { EXPECT_EQ(Vit(Config()).autoregressive(), nullptr); }

}  // namespace
}  // namespace fsdp::testing
