// Runs that compute in bf16 on fp32 masters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/llama/config.h"
#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/model_layout.h"

namespace fsdp::testing {
namespace {

constexpr DType kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;

float RoundedTo(DType dtype, float value) {
  return dtype == kBF16 ? static_cast<float>(BFloat16(value)) : static_cast<float>(Float16(value));
}

TinyRun InBFloat16(int world, Strategy strategy) {
  TinyRun run;
  run.world = world;
  run.options.executor.sharding_strategy = strategy;
  run.options.executor.mixed_precision.param_dtype = DType::kBFloat16;
  return run;
}

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

// bf16 has 8 bits: a product of rounded factors is off by up to 2^-8, and what is summed by less.
TEST(MixedPrecision, GradientsAreThoseOfFp32ToTheBitsOfBFloat16) {
  for (const bool llama : {false, true}) {
    TinyRun run;
    if (llama) run.llama = TinyRun::TinyLlama();
    run.steps = 1;
    run.options.executor.max_norm = 0;
    const TinyResult want = Train(run);
    run.options.executor.mixed_precision.param_dtype = DType::kBFloat16;
    const TinyResult got = Train(run);
    EXPECT_NE(got.losses, want.losses);  // It is another computation.
    EXPECT_NEAR(got.losses[0], want.losses[0], 0x1p-8 * want.losses[0]);
    EXPECT_NEAR(got.grad_norms[0], want.grad_norms[0], 0x1p-6 * want.grad_norms[0]);
    for (const auto& [name, gradient] : want.gradients) {
      std::vector<float> difference = got.gradients.at(name);
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient[i];
      // A few roundings a layer, most of them random; of biases of keys the gradient is nearly 0.
      EXPECT_LE(Norm(difference), 0x1p-4 * Norm(gradient) + 0x1p-9 * want.grad_norms[0]) << name;
    }
  }
}

TEST(MixedPrecision, TwentyStepsLearnWhatFp32Learns) {
  TinyRun run;
  run.steps = 20;
  const TinyResult want = Train(run);
  run.options.executor.mixed_precision.param_dtype = DType::kBFloat16;
  const TinyResult got = Train(run);
  ASSERT_EQ(got.losses.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 0x1p-8 * want.losses[i]) << i;
  }
}

// An average that forgets at once is the master itself, cast when it is gathered, or bound, where
// the compute copy was cast when it was updated.
TEST(MixedPrecision, AveragedWeightsAreCastAsMastersAre) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int world : {1, 2, 3}) {
      TinyRun run = InBFloat16(world, strategy);
      const float want = Train(run).eval_loss;
      run.options.optimizer.ema = 0.0;
      run.options.eval_ema = true;
      EXPECT_EQ(Train(run).eval_loss, want) << "world " << world;
    }
  }
}

// How many there were.
size_t WithoutAverages(TinyResult& result) {
  return std::erase_if(result.state, [](const auto& of) { return of.first.starts_with("ema/"); });
}

// Also where the masters themselves are what is computed with.
TEST(MixedPrecision, AnEvaluationOfOthersLeavesMastersAlone) {
  for (const auto cast : {FsdpOptions::MixedPrecision::CastIn::kOptimizer,
                          FsdpOptions::MixedPrecision::CastIn::kGather}) {
    for (const int world : {1, 2}) {
      TinyRun run = InBFloat16(world, Strategy::kNoShard);
      run.options.executor.mixed_precision.master_dtype = kBF16;
      run.options.executor.mixed_precision.cast = cast;
      const TinyResult want = Train(run);
      run.options.optimizer.ema = 0.5;
      run.options.eval_ema = true;
      run.options.generate = true;
      run.logits = {{0, 3}};
      TinyResult got = Train(run);
      EXPECT_NE(got.eval_loss, want.eval_loss);
      got.eval_loss = want.eval_loss;
      got.logits = want.logits;
      EXPECT_GT(WithoutAverages(got), 0);
      EXPECT_EQ(FirstDifference(got, want), "") << "world " << world;
    }
  }
}

// Where nothing is gathered, other weights are cast over the masters' copies.
TEST(MixedPrecision, AnEvaluationOfOthersLeavesTrainingAlone) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
    for (const int world : {1, 2}) {
      TinyRun run = InBFloat16(world, strategy);
      const TinyResult want = Train(run);
      run.options.optimizer.ema = 0.5;
      run.options.eval_ema = true;
      run.options.generate = true;
      run.logits = {{0, 3}};  // The average's, which is zero yet.
      TinyResult got = Train(run);
      EXPECT_NE(got.eval_loss, want.eval_loss);
      got.eval_loss = want.eval_loss;
      got.logits = want.logits;
      EXPECT_GT(WithoutAverages(got), 0);
      EXPECT_EQ(FirstDifference(got, want), "") << "world " << world;
    }
  }
}

// Rounded once on its way, and not again when it has been added up.
TEST(MixedPrecision, GradientsTravelInReduceDType) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kHybridShard, Strategy::kNoShard}) {
    for (const DType dtype : {kBF16, kF16}) {
      TinyRun run;
      run.world = 4;
      run.steps = 1;
      run.options.executor.max_norm = 0;
      run.options.executor.sharding_strategy = strategy;
      if (strategy == Strategy::kHybridShard) run.options.executor.shard_size = 2;
      const TinyResult want = Train(run);
      run.options.executor.mixed_precision.reduce_dtype = dtype;
      const TinyResult got = Train(run);
      EXPECT_EQ(got.losses, want.losses);  // Nothing else is another computation.
      EXPECT_NE(got.gradients, want.gradients);
      const double epsilon = dtype == kBF16 ? 0x1p-8 : 0x1p-11;
      int rounded = 0, all = 0;
      for (const auto& [name, gradient] : want.gradients) {
        for (size_t i = 0; i < gradient.size(); ++i) {
          // Four addends that may be larger than their sum, and a sum of replicas.
          const float value = got.gradients.at(name)[i];
          ASSERT_NEAR(value, gradient[i], 8 * epsilon * std::abs(gradient[i]) + epsilon * 0.05);
          if (value == 0) continue;
          ++all;
          rounded += RoundedTo(dtype, value) == value;
        }
      }
      // The sum of a reduce-scatter is fp32; an all-reduce rounds it, and hybrid's comes last.
      const bool last_rounds = strategy != Strategy::kFullShard;
      if (!last_rounds) {
        EXPECT_LT(rounded, all / 2);
      } else if (dtype == kBF16) {
        EXPECT_EQ(rounded, all);
      }
    }
  }
}

// With one rank, where nothing is reduced, that is all it does.
TEST(MixedPrecision, GradientsAreKeptInGradDType) {
  TinyRun run = InBFloat16(1, Strategy::kFullShard);
  run.options.global_batch_size = run.options.executor.micro_batch_size = 2;
  run.steps = 1;
  run.options.executor.max_norm = 0;
  const TinyResult want = Train(run);
  run.options.executor.mixed_precision.grad_dtype = kBF16;
  const TinyResult got = Train(run);
  EXPECT_EQ(got.losses, want.losses);
  for (const auto& [name, gradient] : want.gradients) {
    if (name == "transformer.wte.weight")
      continue;  // The head's and the embedding's are added to each other.
    for (size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_EQ(got.gradients.at(name)[i], RoundedTo(kBF16, gradient[i])) << name;
    }
  }
}

TEST(MixedPrecision, TheGatherCastsToTheSameBits) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int world : {1, 2}) {
      for (const bool keep : {false, true}) {
        TinyRun run = InBFloat16(world, strategy);
        run.options.optimizer.ema = 0.5;
        run.options.eval_ema = true;
        if (keep) run.options.executor.mixed_precision.keep_fp32 = {"*ln_*"};
        const TinyResult want = Train(run);
        run.options.executor.mixed_precision.cast = FsdpOptions::MixedPrecision::CastIn::kGather;
        EXPECT_EQ(FirstDifference(Train(run), want), "");
      }
    }
  }
}

TinyRun InFloat16(int world, double scale) {
  TinyRun run;
  run.world = world;
  run.options.executor.mixed_precision = {
      .param_dtype = kF16, .grad_dtype = kF16, .reduce_dtype = kF16};
  run.options.executor.mixed_precision.scaler.init_scale = scale;
  return run;
}

void ExpectResultsOfFp32(const TinyRun& run, const TinyResult& want) {
  const TinyResult got = Train(run);
  ASSERT_EQ(got.loss_scales, std::vector<float>(3, static_cast<float>(1024 * run.world)));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 0x1p-10 * want.losses[i]);
    EXPECT_NEAR(got.grad_norms[i], want.grad_norms[i], 0x1p-7 * want.grad_norms[i]);
  }
  for (const auto& [name, gradient] : want.gradients) {
    std::vector<float> difference = got.gradients.at(name);
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient[i];
    EXPECT_LE(Norm(difference), 0x1p-7 * Norm(gradient) + 0x1p-9 * want.grad_norms[2]) << name;
  }
}

TEST(LossScale, TakenAwayBeforeAnythingIsSeen) {
  const TinyResult want = Train(TinyRun{});
  for (const int world : {1, 2}) ExpectResultsOfFp32(InFloat16(world, 1024), want);
}

// Divided before the sum, in the gradient or on the wire; and multiplied behind, or by the norm and
// the update, here and on the host.
TEST(LossScale, WhatASumOverReplicasIsDividedByIsTakenAway) {
  const TinyResult want = Train(TinyRun{});
  for (const DType grad : {kF16, DType::kFloat32}) {
    for (const DType reduce : {kF16, DType::kFloat32}) {
      for (const Strategy strategy : {Strategy::kNoShard, Strategy::kHybridShard}) {
        for (const bool offload : {false, true}) {
          TinyRun run = InFloat16(4, 1024);
          ExecutorOptions& o = run.options.executor;
          o.mixed_precision.grad_dtype = grad;
          o.mixed_precision.reduce_dtype = reduce;
          o.sharding_strategy = strategy;
          if (strategy == Strategy::kHybridShard) o.shard_size = 2;
          o.cpu_offload.optimizer = offload;
          SCOPED_TRACE(std::string(Name(grad)) + ", " + std::string(Name(reduce)) +
                       (strategy == Strategy::kNoShard ? ", no_shard" : ", hybrid_shard") +
                       (offload ? ", offload" : ""));
          ExpectResultsOfFp32(run, want);
        }
      }
    }
  }
}

TEST(LossScale, AnOverflowChangesNothingButTheScale) {
  for (const int world : {1, 2, 3}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      TinyRun run = InFloat16(world, 0x1p60);
      run.options.executor.sharding_strategy = strategy;
      run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
      run.options.optimizer.ema = 0.5;
      const TinyResult got = Train(run);
      const float first = world == 1 ? 0x1p60 : 0x1p61;
      EXPECT_EQ(got.loss_scales, (std::vector<float>{first, first / 2, first / 4}));
      EXPECT_TRUE(std::all_of(got.grad_norms.begin(), got.grad_norms.end(),
                              [](float norm) { return std::isinf(norm); }));
      EXPECT_EQ(got.parameters, got.initial);
      for (const auto& [name, state] : got.state) {
        EXPECT_EQ(state, std::vector<float>(state.size(), 0)) << name;
      }
    }
  }
}

// Down to where nothing overflows. On the way there are steps in which one rank's shard alone does.
TEST(LossScale, AllRanksTakeTheSameStepsAndScales) {
  // On the wire the largest elements overflow first.
  TinyRun run = InFloat16(3, 0x1p21);  // Three ranks begin with twice that.
  run.options.executor.mixed_precision.param_dtype = DType::kFloat32;
  run.options.executor.mixed_precision.grad_dtype = DType::kFloat32;
  run.options.executor.mixed_precision.scaler.backoff_factor = 0.9;
  run.steps = 40;
  run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
  run.options.lr.lr = 0.001;
  const TinyResult sharded = Train(run);  // Ranks that disagree about a scale fail it.
  const auto skipped = std::count_if(sharded.grad_norms.begin(), sharded.grad_norms.end(),
                                     [](float norm) { return std::isinf(norm); });
  EXPECT_GT(skipped, 5);
  EXPECT_LT(skipped, 35);
  EXPECT_NEAR(sharded.loss_scales.back(), 0x1p22 * std::pow(0.9, skipped), 1);
  EXPECT_NE(sharded.parameters, sharded.initial);
}

TEST(LossScale, AFloorIsKept) {
  TinyRun run = InFloat16(1, 0x1p40);
  run.options.executor.mixed_precision.scaler.min_scale = 0x1p39;
  EXPECT_EQ(Train(run).loss_scales, (std::vector<float>{0x1p40, 0x1p39, 0x1p39}));
}

TEST(MixedPrecision, WhatIsKeptIsNamedWhole) {
  LlamaConfig config = TinyRun::TinyLlama();
  const auto model = MakeModel(config);
  const auto mistake = [&](const std::vector<std::string>& globs) {
    std::string all;
    for (const KeepMistake& m : KeepMistakes(globs, *model)) {
      all += std::to_string(m.glob) + ": " + m.message + "\n";
    }
    return all;
  };
  EXPECT_EQ(mistake({}), "");
  EXPECT_EQ(mistake({"*norm*"}), "");
  EXPECT_EQ(mistake({"*.0.*q_proj.weight", "*.0.*k_proj.weight", "*.0.*v_proj.weight"}), "");
  EXPECT_NE(mistake({"*norm*", "*wte*"}).find("1: `*wte*` matches no parameter; a name is "),
            std::string::npos);
  const std::string some = mistake({"*.0.*gate_proj*"});
  EXPECT_NE(some.find("It matches: model.layers.0.mlp.gate_proj.weight; not: "
                      "model.layers.0.mlp.up_proj.weight"),
            std::string::npos)
      << some;
}

}  // namespace
}  // namespace fsdp::testing
