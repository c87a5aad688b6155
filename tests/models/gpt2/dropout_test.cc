// Dropout in GPT-2: what falls away belongs to sample, place and element, and to nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/family.h"
#include "tests/testing/model_promises.h"
#include "tests/testing/tiny_run.h"
#include "trainer/core/philox.h"

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
  run.options.executor.sharding_strategy = Strategy::kShardGradOp;
  const TinyResult plain = Train(run);
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      run.options.executor.sharding_strategy = strategy;
      run.options.executor.recompute = recompute;
      EXPECT_EQ(FirstDifference(Train(run), plain), "") << static_cast<int>(recompute);
    }
  }
}

// Other elements would move the loss of a step by percents; other orders of sums do by 1e-6.
TEST_P(DropoutRuns, RanksAndMicroBatchesDropTheSame) { ExpectRanksAndMicroBatchesAgree(Run()); }

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

// Draws are those of ops/dropout.h, at sites that no other version may number otherwise: 0 of the
// embedding, then two of each block. Branches are their last bias alone, so the loss follows from
// the embedding and the dropped biases.
TEST(Dropout, SitesAreForEver) {
  const double rates[] = {0.25, 0.5};  // The embedding's, the branches'.
  TinyRun run = RunWith(rates[0], rates[1]);
  run.steps = 1;
  const auto draw = [](const std::string& name, int64_t i) {
    return RandomStream(3, name).Normal(static_cast<uint64_t>(i));
  };
  const auto is_drawn = [](const std::string& name) {
    return name.ends_with("wte.weight") || name.ends_with("c_proj.bias");
  };
  run.initial = [&](const Parameter& p, int64_t begin, std::span<float> values) {
    const bool one = p.name().find("ln_") != std::string::npos && p.name().ends_with("weight");
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      values[i] = is_drawn(p.name()) ? draw(p.name(), at) : one ? 1.0f : 0.0f;
    }
  };
  const auto token = [](int64_t sample, int64_t t) { return (31 * sample + 7 * t) % 101; };
  run.sample = [&](int64_t, int64_t sample, std::span<int32_t> tokens, std::span<float> weights) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = static_cast<int32_t>(token(sample, static_cast<int64_t>(t)));
    }
    std::fill(weights.begin(), weights.end(), 1.0f);
  };

  const int64_t seq = run.options.executor.sample_length, width = run.config.hidden_size;
  const auto wte = [&](int64_t row, int64_t j) {
    return double{draw("transformer.wte.weight", row * width + j)};
  };
  double loss = 0;
  for (int64_t sample = 0; sample < 6; ++sample) {
    for (int64_t t = 0; t < seq; ++t) {
      const auto kept = [&](uint32_t site, int64_t j) {  // 0, or the factor.
        const auto element = static_cast<uint32_t>(t * width + j);
        const PhiloxKey key = {1, static_cast<uint32_t>(sample)};  // As TinyRun has them.
        const double rate = rates[site == 0 ? 0 : 1];
        const uint32_t word = Philox({element / 4, 0, site, 0}, key)[element % 4];
        return word >= rate * 0x1p32 ? 1 / (1 - rate) : 0;
      };
      std::vector<double> x;
      double mean = 0, variance = 0;
      for (int64_t j = 0; j < width; ++j) {
        x.push_back(kept(0, j) * wte(token(sample, t), j));
        for (uint32_t layer = 0; layer < 3; ++layer) {
          const std::string h = "transformer.h." + std::to_string(layer);
          x.back() += kept(1 + 2 * layer, j) * draw(h + ".attn.c_proj.bias", j);
          x.back() += kept(2 + 2 * layer, j) * draw(h + ".mlp.c_proj.bias", j);
        }
        mean += x.back() / static_cast<double>(width);
      }
      for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(width);
      const double scale = 1 / std::sqrt(variance + run.config.layer_norm_epsilon);
      double sum = 0, target = 0;
      for (int64_t row = 0; row < run.config.vocab_size; ++row) {
        double logit = 0;
        for (int64_t j = 0; j < width; ++j) logit += (x[j] - mean) * scale * wte(row, j);
        sum += std::exp(logit);
        if (row == token(sample, t + 1)) target = logit;
      }
      loss += (std::log(sum) - target) / static_cast<double>(6 * seq);
    }
  }
  EXPECT_NEAR(Train(run).losses[0] / loss, 1, 1e-5);
}

}  // namespace
}  // namespace fsdp::testing
