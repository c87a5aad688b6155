// Runs that compute in bf16 on fp32 masters.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "models/make_model.h"
#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/keep_fp32.h"

namespace fsdp::testing {
namespace {

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
      run.options.ema = 0.0;
      run.options.eval_ema = true;
      EXPECT_EQ(Train(run).eval_loss, want) << "world " << world;
    }
  }
}

// Where nothing is gathered, other weights are cast over the masters' copies.
TEST(MixedPrecision, AnEvaluationOfOthersLeavesTrainingAlone) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
    for (const int world : {1, 2}) {
      TinyRun run = InBFloat16(world, strategy);
      const TinyResult want = Train(run);
      run.options.ema = 0.5;
      run.options.eval_ema = true;
      run.options.generate = true;
      run.logits = {{0, 3}};  // Of an average that is zero yet.
      TinyResult got = Train(run);
      EXPECT_NE(got.eval_loss, want.eval_loss);
      got.eval_loss = want.eval_loss;
      got.logits = want.logits;
      EXPECT_EQ(FirstDifference(got, want), "") << "world " << world;
    }
  }
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
