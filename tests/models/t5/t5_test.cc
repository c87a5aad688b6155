#include "models/t5/t5.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/changed_rows.h"
#include "tests/testing/model_promises.h"

namespace fsdp::testing {
namespace {

T5Config TinyT5(bool gated, double dropout = 0) {
  return {.hidden_size = 24,
          .intermediate_size = 52,
          .num_hidden_layers = 2,
          .num_decoder_layers = 3,
          .num_attention_heads = 3,
          .head_dim = 10,
          .vocab_size = 101,
          .relative_attention_num_buckets = 8,
          .relative_attention_max_distance = 9,
          .gated_mlp = gated,
          .tie_word_embeddings = !gated,
          .dropout_rate = dropout,
          .target_length = 7};
}

TinyRun RunOf(
    const T5Config& config,
    const ChangedRows::Change& change = [](int64_t, int64_t, const Batch&) {}) {
  TinyRun run;
  run.model = [config] { return std::make_unique<T5>(config); };
  run.rows = std::make_shared<ChangedRows>(run.model()->Inputs(run.options.executor.sample_length),
                                           change);
  run.options.executor.max_norm = 0;
  return run;
}

class T5Runs : public ::testing::TestWithParam<bool> {
 protected:
  static T5Config Config(double dropout = 0) { return TinyT5(GetParam(), dropout); }
};
INSTANTIATE_TEST_SUITE_P(Versions, T5Runs, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Gated" : "Relu"; });

TEST_P(T5Runs, StrategyAndRecomputationChangeNoBit) {
  ExpectStrategyAndRecomputationChangeNoBit(RunOf(Config(/*dropout=*/0.2)));
}

TEST_P(T5Runs, TheRootChangesNoBit) { ExpectTheRootChangesNoBit(RunOf(Config(/*dropout=*/0.2))); }

TEST_P(T5Runs, OffloadChangesNoBit) { ExpectOffloadChangesNoBit(RunOf(Config(/*dropout=*/0.2))); }

TEST_P(T5Runs, RanksAndMicroBatchesDropTheSame) {
  ExpectRanksAndMicroBatchesAgree(RunOf(Config(/*dropout=*/0.2)));
}

// The root, whose table of biases the encoder's first block reads last, trains nothing.
TEST_P(T5Runs, AFrozenRootStaysWhileBlocksReadIt) {
  TinyRun run = RunOf(Config());
  run.options.optimizer.groups = {{"encoder.block.*.wi*", {}, 1, false}, {"*", {}, 1, true}};
  for (const int world : {1, 3}) {
    run.world = world;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      run.options.executor.recompute = recompute;
      run.options.executor.limiter = FsdpOptions::Limiter::kHost;
      run.options.executor.buffers = FsdpOptions::Buffers::kSlots;
      const TinyResult slots = Train(run);
      run.options.executor.buffers = FsdpOptions::Buffers::kCaching;
      EXPECT_EQ(FirstDifference(Train(run), slots), "") << "world " << world;
    }
  }
}

TEST_P(T5Runs, GradientIsThatOfDifferences) {
  ExpectGradientOfDifferences(RunOf(Config(/*dropout=*/0.2)));
}

// Tokens behind an input's length, and behind those of a target that count, are seen by nobody.
TEST_P(T5Runs, PaddingIsNotSeen) {
  const auto run_with = [](int32_t token) {
    return RunOf(Config(), [token](int64_t, int64_t row, const Batch& out) {
      const int64_t input = out.inputs[0].shape[1], target = out.inputs[2].shape[1];
      int32_t* const tokens = out.inputs[0].As<int32_t>() + row * input;
      std::fill(tokens + out.inputs[1].As<int32_t>()[row], tokens + input, token);
      float* const weights = out.inputs[4].As<float>() + row * target;
      std::fill(weights + 4, weights + target, 0.0f);
      for (const size_t i : {2, 3}) {  // The decoder's own tokens, moved right by one, and targets.
        int32_t* const own = out.inputs[i].As<int32_t>() + row * target;
        std::fill(own + (i == 2 ? 5 : 4), own + target, token);
      }
    });
  };
  TinyRun zeros = run_with(0), others = run_with(77);
  zeros.steps = others.steps = 1;
  const TinyResult a = Train(zeros), b = Train(others);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.eval_loss, b.eval_loss);
  for (const auto& [name, gradient] : a.gradients) {
    const std::vector<float>& other = b.gradients.at(name);
    for (size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(gradient[i], other[i], 1e-6) << name << " " << i;
    }
  }
}

// An input's last token is seen by the first of its target, and a target's by those behind it
// alone.
TEST_P(T5Runs, DecoderSeesTheInputAndWhatIsBefore) {
  const auto logits_with = [](size_t input, int64_t place, int64_t column) {
    TinyRun run = RunOf(Config(), [=](int64_t, int64_t row, const Batch& out) {
      out.inputs[1].As<int32_t>()[row] = static_cast<int32_t>(out.inputs[0].shape[1]);
      if (place < 0) return;
      const int64_t n = out.inputs[input].shape[1];
      int32_t& token = out.inputs[input].As<int32_t>()[row * n + place];
      token = (token + 1) % 101;
    });
    run.steps = 1;
    run.logits = {{0, column}};
    return Train(run).logits;
  };
  const std::vector<float> first = logits_with(0, -1, 0), last = logits_with(0, -1, 6);
  EXPECT_NE(logits_with(0, 10, 0), first);
  EXPECT_NE(logits_with(2, 0, 0), first);
  EXPECT_EQ(logits_with(2, 1, 0), first);
  EXPECT_NE(logits_with(2, 1, 6), last);
  EXPECT_EQ(logits_with(3, 2, 6), last);  // A target is nobody's input.
}

TEST_P(T5Runs, DropsInTrainingAlone) {
  const auto first_step = [](double dropout) {
    TinyRun run = RunOf(Config(dropout));
    run.steps = 1;
    run.options.lr.lr = 0;
    run.eval_step = 1;
    run.logits = {{0, 3}};
    return Train(run);
  };
  const TinyResult none = first_step(0), some = first_step(0.2);
  EXPECT_GT(std::abs(some.losses[0] - none.losses[0]), 1e-5);
  EXPECT_EQ(some.eval_loss, none.eval_loss);
  EXPECT_EQ(some.logits, none.logits);
}

// Adapters hang on weights of each stack's blocks, whose tables the root has, and on those that
// read the encoder's output.
TEST_P(T5Runs, AdaptersTrainAlone) {
  TinyRun run = RunOf(Config());
  run.lora = LoraOptions{.rank = 2, .targets = {"*.q.weight", "*wo.weight"}};
  const TinyResult one = Train(run);
  EXPECT_EQ(one.gradients.size(), 2u * (2 + 2 * 3 + 2 + 3));
  run.world = 2;
  const TinyResult two = Train(run);
  for (size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(two.losses[s] / one.losses[s], 1, 1e-5);
  }
  for (const char* frozen : {"shared.weight", "decoder.block.1.layer.2.DenseReluDense.wo.weight"}) {
    EXPECT_EQ(one.parameters.at(frozen), one.initial.at(frozen));
  }
}

// With `wo` in fp32, as transformers keeps it, too.
TEST_P(T5Runs, SixteenBitsAreNearFp32) {
  TinyRun run = RunOf(Config());
  run.steps = 2;
  const TinyResult want = Train(run);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool keeps : {false, true}) {
      auto& mixed = run.options.executor.mixed_precision;
      mixed.param_dtype = dtype;
      mixed.keep_fp32 = {};
      if (keeps) mixed.keep_fp32 = {"*.wo.weight"};
      const TinyResult got = Train(run);
      for (size_t s = 0; s < want.losses.size(); ++s) {
        EXPECT_NEAR(got.losses[s] / want.losses[s], 1, 0.02) << Name(dtype) << keeps;
        EXPECT_NEAR(got.grad_norms[s] / want.grad_norms[s], 1, 0.05) << Name(dtype) << keeps;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
