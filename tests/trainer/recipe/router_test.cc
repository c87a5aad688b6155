// train.router: what follows from a model, and what a model has no use for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/llama/config.h"
#include "models/moe/config.h"
#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

const std::string kData = "\ndata: {train: {paths: [x]}}\n";
const std::string kMoe = "model: {family: moe, vocab_size: 256}" + kData;

std::string MistakesOf(const std::string& yaml) {
  try {
    (void)ParseRecipe({{"r.yaml", yaml}});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Recipe Resolved(const std::string& yaml, const ModelShape& shape) {
  return WithShape(ParseRecipe({{"r.yaml", yaml}}), shape);
}

TEST(RouterRecipe, FollowsFromTheModel) {
  MoeConfig softmax, sigmoid;
  sigmoid.scoring_func = RouterScores::kSigmoid;
  sigmoid.score_correction_bias = true;
  const RouterRecipe of_softmax = Resolved(kMoe, softmax).train.router;
  EXPECT_EQ(of_softmax.aux_loss, 0.01);
  EXPECT_EQ(of_softmax.bias_rate, 0);
  const RouterRecipe of_sigmoid = Resolved(kMoe, sigmoid).train.router;
  EXPECT_EQ(of_sigmoid.aux_loss, 0);
  EXPECT_EQ(of_sigmoid.bias_rate, 0.001);

  const std::string from = "model: {family: moe, init_from: hf}" + kData;
  EXPECT_EQ(Resolved(from, sigmoid).train.router.aux_loss, 0);
  EXPECT_EQ(Resolved(from, sigmoid).train.router.bias_rate, 0);
  softmax.hf_balance.aux_loss = 0.002;
  EXPECT_EQ(Resolved(from, softmax).train.router.aux_loss, 0.002);
  const std::string given = "train: {router: {aux_loss: 0.5, bias_rate: 0.25}}\n";
  EXPECT_EQ(Resolved(from + given, sigmoid).train.router.aux_loss, 0.5);
  EXPECT_EQ(Resolved(from + given, sigmoid).train.router.bias_rate, 0.25);
  const std::string llama = "model: {family: llama, vocab_size: 256}" + kData;
  EXPECT_FALSE(Resolved(llama, LlamaConfig()).train.router.aux_loss);
}

TEST(RouterRecipe, RefusesWhatNothingReads) {
  const std::string llama = "model: {family: llama, vocab_size: 256}" + kData;
  const std::string none = ": this model has no experts: leave it out";
  const auto of = [](const std::string& model, const std::string& router) {
    return MistakesOf(model + "train: {router: {" + router + "}}\n");
  };
  EXPECT_EQ(of(llama, "aux_loss: 0.1"), "r.yaml:3:28: train.router.aux_loss" + none);
  EXPECT_EQ(of(llama, "z_loss: 0.1"), "r.yaml:3:26: train.router.z_loss" + none);
  EXPECT_EQ(of(llama, "aux_scope: step"), "r.yaml:3:29: train.router.aux_scope" + none);
  EXPECT_EQ(of(llama, "bias_rate: 0.1"), "r.yaml:3:29: train.router.bias_rate" + none);
  EXPECT_EQ(of(llama, "aux_loss: 0, z_loss: 0, bias_rate: 0"), "");
  EXPECT_EQ(of(kMoe, "aux_loss: 0.1, z_loss: 0.1, aux_scope: step"), "");
  EXPECT_EQ(of(kMoe, "bias_rate: 0.1"),
            "r.yaml:3:29: train.router.bias_rate: this model's routers have no bias "
            "(score_correction_bias): leave it out");
  EXPECT_EQ(of(kMoe, "z_loss: -1"),
            "r.yaml:3:26: train.router.z_loss: want a number of at least 0, got -1");
  EXPECT_EQ(of(kMoe, "aux_scope: micro_batch"),
            "r.yaml:3:29: train.router.aux_scope: `micro_batch`: a balance loss of a micro-batch "
            "would depend on the number of ranks and on how a batch is accumulated (want "
            "`sequence` or `step`)");
}

}  // namespace
}  // namespace fsdp
