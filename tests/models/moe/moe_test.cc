#include "models/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/models/moe/set_shape.h"
#include "tests/testing/model_promises.h"
#include "tests/testing/tiny_run.h"
#include "trainer/core/philox.h"

namespace fsdp::testing {
namespace {

TinyRun RunOf(const MoeConfig& config) {
  TinyRun run;
  run.moe = config;
  run.options.executor.balance = {.aux_loss = 0.3, .z_loss = 0.02};
  return run;
}

// Sigmoids in groups, a bias that moves, weights of a sum of 1.
MoeConfig TinyDots() {
  MoeConfig config = TinyRun::TinyMoe();
  config.qk_norm_all_heads = config.shared_expert_gate = false;
  config.qk_norm = config.norm_topk_prob = config.score_correction_bias = true;
  config.scoring_func = RouterScores::kSigmoid;
  config.num_experts = 6;
  config.n_group = 3;
  config.topk_group = 2;
  config.routed_scaling_factor = 1.5;
  return config;
}

TinyRun Padded(TinyRun run) {
  run.length = [](int64_t step, int64_t sample) { return 4 + (3 * step + sample) % 8; };
  run.sample = [sample = SampleOf(run), length = run.length](int64_t step, int64_t index,
                                                             std::span<int32_t> tokens,
                                                             std::span<float> weights) {
    sample(step, index, tokens, weights);
    const auto n = static_cast<size_t>(length(step, index));
    std::fill(tokens.begin() + n, tokens.end(), 0);
    std::fill(weights.begin() + n - 1, weights.end(), 0.0f);
    weights[0] = 0;  // A prompt: it is routed, and has no target.
  };
  return run;
}

// Loads of the last step by layer, from the tallies.
std::vector<std::vector<float>> LoadsOf(const TinyResult& result, size_t experts) {
  std::vector<std::vector<float>> loads;
  for (const auto& [name, values] : result.buffers) {
    if (name.ends_with("tally")) {
      loads.emplace_back(values.begin(), values.begin() + static_cast<int64_t>(experts));
    }
  }
  return loads;
}

// Promise 1 of docs/design.md, section 5.
TEST(Moe, StrategyAndRecomputationChangeNoBit) {
  ExpectStrategyAndRecomputationChangeNoBit(Padded(RunOf(TinyRun::TinyMoe())));
  TinyRun run = RunOf(TinyDots());
  run.options.executor.balance.scope = BalanceScope::kStep;
  run.options.executor.balance.bias_rate = 0.05;
  ExpectStrategyAndRecomputationChangeNoBit(run);
}

TEST(Moe, OffloadAndTheRootChangeNoBit) {
  ExpectOffloadChangesNoBit(RunOf(TinyDots()));
  ExpectTheRootChangesNoBit(RunOf(TinyRun::TinyMoe()));
}

// A layer's experts as units of their own: no bit changes but that of a norm over other sums.
TEST(Moe, ExpertsInPiecesChangeNoBit) {
  MoeConfig plain_shared = TinyRun::TinyMoe();
  plain_shared.shared_expert_gate = false;
  const std::vector<std::pair<MoeConfig, std::vector<int64_t>>> cases = {
      {TinyDots(), {1, 2, 3, 6}}, {TinyRun::TinyMoe(), {1, 5}}, {plain_shared, {5}}};
  for (const auto& [config, pieces] : cases) {
    TinyRun run = Padded(RunOf(config));
    run.initial = InitialOfSlices;
    run.world = 2;
    run.options.executor.max_norm = 0;  // Clipping would put the norm into every bit.
    run.options.executor.balance.scope = BalanceScope::kStep;
    if (config.score_correction_bias) run.options.executor.balance.bias_rate = 0.05;
    TinyResult whole = Train(run);
    for (const int64_t n : pieces) {
      run.moe->expert_pieces = n;
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const bool offload : {false, true}) {
          ExecutorOptions& o = run.options.executor;
          o.recompute = recompute;
          o.activation_offload = offload ? ActivationOffload::kHost : ActivationOffload::kNone;
          o.cpu_offload.optimizer = o.cpu_offload.params = offload;
          const TinyResult got = Train(run);
          for (size_t s = 0; s < whole.grad_norms.size(); ++s) {
            EXPECT_NEAR(got.grad_norms[s] / whole.grad_norms[s], 1, 1e-6);
          }
          whole.grad_norms = got.grad_norms;
          EXPECT_EQ(FirstDifference(got, whole), "")
              << n << " pieces, recompute " << static_cast<int>(recompute) << " offload "
              << offload;
        }
      }
    }
  }
}

// Train() refuses bytes that were not planned. Routers of zeros send all tokens to the same
// experts.
TEST(Moe, NoRoutingTakesOtherMemory) {
  for (const bool all_to_some : {false, true}) {
    TinyRun run = RunOf(TinyDots());
    run.initial = InitialOfSlices;
    run.world = 2;
    ExecutorOptions& o = run.options.executor;
    if (all_to_some) {
      run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
        InitialOfSlices(p, begin, values);
        if (p.name().ends_with("mlp.gate.weight")) std::ranges::fill(values, 0.0f);
      };
      o.balance = {};
    }
    run.steps = 1;
    for (const int64_t pieces : {0, 2}) {
      run.moe->expert_pieces = pieces;
      for (const bool caching : {false, true}) {
        o.limiter = caching ? FsdpOptions::Limiter::kHost : FsdpOptions::Limiter::kDevice;
        o.buffers = caching ? FsdpOptions::Buffers::kCaching : FsdpOptions::Buffers::kSlots;
        for (const std::vector<float>& loads : LoadsOf(Train(run), 6)) {
          const auto unused = std::ranges::count(loads, 0.0f);
          EXPECT_TRUE(all_to_some ? unused == 4 : unused < 2) << unused;
        }
      }
    }
  }
}

// Neither the balance losses nor the bias depend on how a batch is cut.
TEST(Moe, RanksAndMicroBatchesAgree) {
  for (const BalanceScope scope : {BalanceScope::kSequence, BalanceScope::kStep}) {
    TinyRun run = Padded(RunOf(TinyDots()));
    run.options.executor.balance.scope = scope;
    run.options.executor.balance.bias_rate = 0.05;
    ExpectRanksAndMicroBatchesAgree(run);
  }
  ExpectRanksAndMicroBatchesAgree(Padded(RunOf(TinyRun::TinyMoe())));
}

// The balance losses are no part of the loss that is reported. A choice that changes on the way is
// a jump, so all of TinyDots' experts are chosen.
TEST(Moe, GradientIsThatOfDifferences) {
  MoeConfig all = TinyDots();
  all.num_experts_per_tok = all.num_experts;
  all.topk_group = all.n_group;
  for (const MoeConfig& config : {TinyRun::TinyMoe(), all}) {
    TinyRun run = Padded(RunOf(config));
    run.options.executor.balance = {};
    ExpectGradientOfDifferences(run);
  }
}

// One expert is an MLP, whatever its router says: softmax of one is 1.
TEST(Moe, OneExpertIsTheDenseModel) {
  TinyRun dense;
  dense.llama = TinyRun::TinyLlama();
  dense.llama->attention_bias = dense.llama->attention_output_bias = dense.llama->mlp_bias = false;
  MoeConfig config;
  static_cast<LlamaConfig&>(config) = *dense.llama;
  config.num_experts = config.num_experts_per_tok = 1;
  config.moe_intermediate_size = config.intermediate_size;
  TinyRun one = RunOf(config);
  one.options.executor.balance = {};
  // The same numbers by the names that both have, and by the experts' places in an MLP.
  const auto by_place = [seed = one.seed](const Parameter& p, int64_t begin,
                                          std::span<float> values) {
    std::string name = p.name();
    if (const size_t at = name.find("experts."); at != std::string::npos) name.erase(at, 8);
    const RandomStream random(seed, name);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.1f * random.Normal(begin + static_cast<int64_t>(i));
    }
  };
  one.initial = dense.initial = by_place;
  const TinyResult a = Train(one), b = Train(dense);
  for (size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 2e-6);
  EXPECT_NEAR(a.eval_loss, b.eval_loss, 2e-6);
}

TEST(Moe, TalliesCountTheStepsTokensAndNoPadding) {
  TinyRun run = Padded(RunOf(TinyRun::TinyMoe()));
  int64_t tokens = 0;
  for (int64_t sample = 0; sample < run.options.global_batch_size; ++sample) {
    tokens += run.length(run.steps, sample);
  }
  for (const int world : {1, 2, 4}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      run.world = world;
      run.options.executor.recompute = recompute;
      const TinyResult result = Train(run);
      const auto loads = LoadsOf(result, 5);
      ASSERT_EQ(loads.size(), 2u);
      for (const std::vector<float>& layer : loads) {
        EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), 0.0f), 2 * tokens) << world;
      }
    }
  }
}

// Padding changes no bit of what the others compute, and moves nothing.
TEST(Moe, PaddingChangesNoBit) {
  TinyRun run = Padded(RunOf(TinyDots()));
  run.options.executor.balance.bias_rate = 0.05;
  const TinyResult zeros = Train(run);
  run.sample = [sample = run.sample, length = run.length](int64_t step, int64_t index,
                                                          std::span<int32_t> tokens,
                                                          std::span<float> weights) {
    sample(step, index, tokens, weights);
    std::fill(tokens.begin() + length(step, index), tokens.end(), 77);
  };
  EXPECT_EQ(FirstDifference(Train(run), zeros), "");
}

// A bias moves by its rate, up where the expert had fewer tokens than the mean.
TEST(Moe, BiasesFollowTheLoads) {
  TinyRun run = RunOf(TinyDots());
  run.steps = 1;
  run.options.executor.balance.bias_rate = 0.25;
  for (const int world : {1, 3}) {
    run.world = world;
    const TinyResult result = Train(run);
    size_t seen = 0;
    for (const auto& [name, tally] : result.buffers) {
      if (!name.ends_with("tally")) continue;
      const std::string prefix = name.substr(0, name.size() - 5);
      const std::vector<float>& bias = result.buffers.at(prefix + "gate.e_score_correction_bias");
      const float mean = std::accumulate(tally.begin(), tally.begin() + 6, 0.0f) / 6;
      for (size_t e = 0; e < 6; ++e) {
        EXPECT_EQ(bias[e], tally[e] == mean ? 0 : tally[e] < mean ? 0.25f : -0.25f) << e;
      }
      ++seen;
    }
    EXPECT_EQ(seen, 2u);
  }
}

// A step that overflows in fp16 changes neither weights nor biases, nor what the next step reads.
TEST(Moe, ASkippedStepMovesNoBias) {
  TinyRun run = RunOf(TinyDots());
  run.steps = 1;
  run.options.executor.balance.bias_rate = 0.25;
  auto& mixed = run.options.executor.mixed_precision;
  mixed.param_dtype = mixed.grad_dtype = mixed.reduce_dtype = DType::kFloat16;
  mixed.keep_fp32 = {"*.gate.weight"};
  mixed.scaler.init_scale = 0x1p60;
  const TinyResult skipped = Train(run);
  EXPECT_EQ(skipped.parameters, skipped.initial);
  for (const auto& [name, values] : skipped.buffers) {
    EXPECT_EQ(values, std::vector<float>(values.size(), 0)) << name;
  }
  mixed.scaler.init_scale = 1;
  const TinyResult learned = Train(run);
  EXPECT_NE(learned.buffers, skipped.buffers);
}

}  // namespace
}  // namespace fsdp::testing
