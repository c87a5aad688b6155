// The second sum of an evaluation (trainer/nn/eval_metric.h) through whole steps.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "tests/testing/scored_images.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

TinyRun OfImages(bool clicks, const EvalMetric* metric) {
  TinyRun run;
  run.model = [=] { return std::make_unique<ScoredImages>(clicks, metric); };
  run.rows = std::make_shared<LabelledImages>(clicks);
  run.options.global_batch_size = 17;
  return run;
}

double Want(const TinyRun& run, bool clicks, const TinyResult& result) {
  const int64_t first = (run.eval_step - 1) * run.options.global_batch_size;
  return SecondSumOf(clicks, result.parameters.at("weight"), result.parameters.at("bias"), first,
                     first + run.options.global_batch_size);
}

// 17 samples in micro-batches of 2 a rank: rows are left over, and ranks. Replicas have samples of
// their own.
TEST(EvalMetric, SecondSumsAreOfAllRanksSamples) {
  struct Setting {
    int world;
    Strategy strategy = Strategy::kFullShard;
    int shard_size = 0;
  };
  for (const bool clicks : {false, true}) {
    for (const Setting& setting :
         {Setting{1}, Setting{2}, Setting{3}, Setting{5}, Setting{3, Strategy::kNoShard},
          Setting{4, Strategy::kHybridShard, 2}, Setting{6, Strategy::kHybridShard, 2}}) {
      TinyRun run = OfImages(clicks, clicks ? &kNormalizedEntropy : &kAccuracy);
      run.world = setting.world;
      run.options.executor.sharding_strategy = setting.strategy;
      if (setting.shard_size > 0) run.options.executor.shard_size = setting.shard_size;
      SCOPED_TRACE(std::to_string(setting.world) + (clicks ? " ranks, clicks" : " ranks"));
      const TinyResult result = Train(run);
      const double want = Want(run, clicks, result);
      EXPECT_GT(want, 2);
      EXPECT_LT(want, 17);
      EXPECT_EQ(result.eval_second_sum, want);
    }
  }
}

// Neither the loss nor anything that is learnt is another without it.
TEST(EvalMetric, TheSecondSumChangesNothingElse) {
  for (const bool clicks : {false, true}) {
    for (const int world : {1, 4}) {
      TinyRun with = OfImages(clicks, clicks ? &kNormalizedEntropy : &kAccuracy);
      TinyRun without = OfImages(clicks, nullptr);
      for (TinyRun* run : {&with, &without}) {
        run->world = world;
        run->options.executor.sharding_strategy = Strategy::kHybridShard;
        run->options.executor.shard_size = world / 2 > 0 ? world / 2 : 1;
      }
      TinyResult one = Train(with);
      const TinyResult other = Train(without);
      EXPECT_EQ(other.eval_second_sum, 0);
      EXPECT_GT(one.eval_second_sum, 0);
      one.eval_second_sum = 0;
      EXPECT_EQ(FirstDifference(one, other), "");
    }
  }
}

// Scores that are rounded otherwise, the scale of a loss, weights from host memory: a count all the
// same.
TEST(EvalMetric, CountsAreExactInEveryPrecision) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    TinyRun run = OfImages(/*clicks=*/false, &kAccuracy);
    run.world = 2;
    FsdpOptions::MixedPrecision& mixed = run.options.executor.mixed_precision;
    mixed.param_dtype = mixed.grad_dtype = mixed.reduce_dtype = dtype;
    mixed.scaler.init_scale = 256;
    run.options.executor.cpu_offload = {.params = true, .optimizer = true};
    const TinyResult result = Train(run);
    EXPECT_NEAR(result.eval_second_sum, Want(run, false, result), 1);
    EXPECT_EQ(result.eval_second_sum, std::round(result.eval_second_sum));
    EXPECT_GT(result.eval_second_sum, 2);
  }
}

}  // namespace
}  // namespace fsdp::testing
