// Dropout in GPT-2: what falls away belongs to sample, place and element, and to nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

TinyRun RunWith(double embedding, double residual, double attention = 0) {
  TinyRun run;
  run.config.embedding_dropout = embedding;
  run.config.residual_dropout = residual;
  run.config.attention_dropout = attention;
  run.options.global_batch_size = 6;
  run.options.executor.micro_batch_size = 1;
  return run;
}

TinyRun LlamaWith(double attention) {
  TinyRun run = RunWith(0, 0);
  run.llama = TinyRun::TinyLlama();
  run.llama->attention_dropout = attention;
  return run;
}

class DropoutRuns : public ::testing::TestWithParam<bool> {
 protected:
  TinyRun Run() const { return GetParam() ? LlamaWith(0.3) : RunWith(0.2, 0.3, 0.25); }
};
INSTANTIATE_TEST_SUITE_P(Families, DropoutRuns, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Llama" : "Gpt2"; });

TEST_P(DropoutRuns, StrategyAndRecomputationChangeNoBit) {
  TinyRun run = Run();
  run.world = 2;
  run.options.executor.strategy = Strategy::kShardGradOp;
  const TinyResult plain = Train(run);
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      run.options.executor.strategy = strategy;
      run.options.executor.recompute = recompute;
      EXPECT_EQ(FirstDifference(Train(run), plain), "") << static_cast<int>(recompute);
    }
  }
}

// Other elements would move the loss of a step by percents; other orders of sums do by 1e-6.
TEST_P(DropoutRuns, RanksAndMicroBatchesDropTheSame) {
  TinyRun run = Run();
  const TinyResult one = Train(run);
  for (const auto& [world, rows] : {std::pair(1, 3), {2, 1}, {3, 2}, {5, 1}}) {
    run.world = world;
    run.options.executor.micro_batch_size = rows;
    const TinyResult other = Train(run);
    for (size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(other.losses[s] / one.losses[s], 1, 1e-5) << "world " << world;
      EXPECT_NEAR(other.grad_norms[s] / one.grad_norms[s], 1, 1e-4) << "world " << world;
    }
  }
}

// Each of them acts while training, and neither on evaluation or logits.
TEST(Dropout, ActsInTrainingOnly) {
  const auto first_step = [](TinyRun run) {
    run.steps = 1;
    run.options.lr.lr = 0;
    run.eval_step = 1;
    run.logits = {{0, 3}};
    return Train(run);
  };
  const auto differ = [](const TinyResult& dropped, const TinyResult& none) {
    EXPECT_GT(std::abs(dropped.losses[0] - none.losses[0]), 1e-5);
    EXPECT_EQ(dropped.eval_loss, none.eval_loss);
    EXPECT_EQ(dropped.logits, none.logits);
  };
  const TinyResult none = first_step(RunWith(0, 0)), embedding = first_step(RunWith(0.2, 0)),
                   residual = first_step(RunWith(0, 0.2)),
                   attention = first_step(RunWith(0, 0, 0.2));
  for (const TinyResult* dropped : {&embedding, &residual, &attention}) differ(*dropped, none);
  EXPECT_NE(embedding.losses[0], residual.losses[0]);
  EXPECT_NE(attention.losses[0], residual.losses[0]);
  differ(first_step(LlamaWith(0.2)), first_step(LlamaWith(0)));
}

// The same sequence in another step, or as another sample, loses other elements.
TEST(Dropout, FollowsStepAndSample) {
  TinyRun run = RunWith(0.5, 0);
  run.options.global_batch_size = 1;
  run.options.lr.lr = 0;
  run.steps = 3;
  run.sample = [](int64_t, int64_t, std::span<int32_t> tokens, std::span<float> weights) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    std::fill(weights.begin(), weights.end(), 1.0f);
  };
  const TinyResult steps = Train(run);
  EXPECT_NE(steps.losses[0], steps.losses[1]);
  EXPECT_NE(steps.losses[1], steps.losses[2]);
  EXPECT_EQ(Train(run).losses, steps.losses);
  run.options.global_batch_size = 2;
  run.steps = 1;
  const TinyResult two = Train(run);  // The mean of two different losses.
  EXPECT_NE(two.losses[0], steps.losses[0]);
}

}  // namespace
}  // namespace fsdp::testing
