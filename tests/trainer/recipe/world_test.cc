// Recipes checked against the number of ranks.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

constexpr const char* kGood =
    "model: {family: gpt2, hidden_size: 64, num_attention_heads: 4}\n"
    "data: {train: {paths: [corpus.txt]}}\n";

Recipe Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ParseRecipe({{"r.yaml", text}}, overrides);
}

TEST(Advice, NamesRanksAndWorkWithoutSamples) {
  struct Case {
    int64_t batch, micro, ranks;
    std::string unused;
  };
  const Case cases[] = {
      {128, 1, 128, ""},
      {1000, 3, 8, ""},  // 0.8 %.
      {128, 1, 256,
       "128 of 256 ranks have no samples, and 50.0 % of each step is computed for nothing: its 128 "
       "samples in micro-batches of 1 are dealt to ranks with room for 256. To use all, set "
       "train.global_batch_size to 256, or take 128 ranks"},
      {64, 4, 32,
       "16 of 32 ranks have no samples, and 50.0 % of each step is computed for nothing: its 64 "
       "samples in micro-batches of 4 are dealt to ranks with room for 128. To use all, set "
       "train.global_batch_size to 128, or train.micro_batch_size to 2, or take 16 ranks"},
      {1, 1, 3,
       "2 of 3 ranks have no samples, and 66.7 % of each step is computed for nothing: its 1 "
       "sample "
       "in micro-batches of 1 are dealt to ranks with room for 3. To use all, set "
       "train.global_batch_size to 3, or take 1 rank"},
      {130, 1, 128,
       "49.2 % of each step is computed for nothing: its 130 samples in micro-batches of 1 are "
       "dealt to ranks with room for 256. To use all, set train.global_batch_size to 256"},
      {12, 8, 2,
       "25.0 % of each step is computed for nothing: its 12 samples in micro-batches of 8 are "
       "dealt "
       "to ranks with room for 16. To use all, set train.global_batch_size to 16, or "
       "train.micro_batch_size to 6"},
      {2147483647, 2147483646, 1,
       "50.0 % of each step is computed for nothing: its 2147483647 samples in micro-batches of "
       "2147483646 are dealt to ranks with room for 4294967292. To use all, set "
       "train.global_batch_size to 4294967292, or train.micro_batch_size to 1"},
  };
  for (const Case& one : cases) {
    const Recipe recipe = Parse(kGood, {"train.micro_batch_size=" + std::to_string(one.micro),
                                        "train.global_batch_size=" + std::to_string(one.batch)});
    EXPECT_EQ(WhatIsUnused(recipe.train, one.ranks), one.unused);
    const std::vector<std::string> advice = Advice(recipe, one.ranks);
    ASSERT_EQ(advice.size(), one.unused.empty() ? 0 : 1);
    if (advice.empty()) continue;
    EXPECT_EQ(advice[0], "--set train.global_batch_size=" + std::to_string(one.batch) +
                             ": train.global_batch_size: " + one.unused);
  }
}

TEST(Advice, NamesWhatARankAloneDoesNotQuantise) {
  const auto advice = [](const std::string& fsdp, int64_t world) {
    return Advice(Parse(kGood, {"fsdp=" + fsdp, "train.micro_batch_size=1"}), world);
  };
  const std::string both = "{quantize: {gather: int8, reduce: int4}}";
  EXPECT_EQ(advice(both, 1),
            (std::vector<std::string>{
                "--set fsdp=" + both +
                    ": fsdp.quantize.gather: one rank gathers nothing: nothing is quantised",
                "--set fsdp=" + both +
                    ": fsdp.quantize.reduce: one rank sums nothing: nothing is quantised"}));
  EXPECT_TRUE(advice(both, 2).empty());
}

TEST(Advice, NamesAWarmUpThatTheRunCutsShort) {
  EXPECT_TRUE(Advice(Parse(kGood, {"schedule.warmup_steps=10", "train.steps=10"}), 1).empty());
  EXPECT_EQ(Advice(Parse(kGood, {"schedule.warmup_steps=11", "train.steps=10"}), 1),
            std::vector<std::string>{
                "--set schedule.warmup_steps=11: schedule.warmup_steps: a warm-up of 11 steps, but "
                "the run has 10: this start warms up over all of them"});
}

TEST(Advice, NamesKeysOfOtherOptimizers) {
  const auto advice = [](const std::vector<std::string>& settings) {
    return Advice(Parse(kGood, settings), 1);
  };
  EXPECT_EQ(advice({"optimizer.muon.ns_steps=3"}),
            std::vector<std::string>{
                "--set optimizer.muon.ns_steps=3: optimizer.muon: `adamw` does not read it"});
  EXPECT_EQ(advice({"optimizer={name: sgd, betas: [0.8, 0.9], groups: [{match: x, rule: adamw}]}"})
                .size(),
            2u);
  EXPECT_EQ(advice({"optimizer={name: adafactor, betas: [0.8, 0.9], eps: 1e-7}"}).size(), 2u);
  EXPECT_EQ(advice({"optimizer.adafactor.d=2"}).size(), 1u);
  EXPECT_TRUE(advice({"optimizer={name: adafactor, adafactor: {d: 2}}"}).empty());
  // As a resolved recipe has them.
  EXPECT_TRUE(advice({"optimizer.muon.ns_steps=5", "optimizer.eps=1e-8"}).empty());
  EXPECT_TRUE(advice({"optimizer.name=muon", "optimizer.muon.ns_steps=3"}).empty());
}

TEST(CheckWorld, AScheduleHasAnEnd) {
  const Recipe recipe =
      Parse(kGood, {"train.micro_batch_size=1", "train.global_batch_size=2147483647"});
  EXPECT_THROW(CheckWorld(recipe, 1, 1), ConfigError);
  EXPECT_NO_THROW(CheckWorld(recipe, 1 << 20, 1));
  EXPECT_EQ(WorldConflicts(Parse(kGood, {"train.micro_batch_size=1", "fsdp.shard_size=2",
                                         "train.global_batch_size=2147483647"}),
                           1, 1)
                .size(),
            2u);
  EXPECT_NO_THROW(CheckWorld(Parse(kGood), 1, 1));
}

TEST(CheckReshard, WantsADivisorBelowTheShards) {
  const auto mistake = [](const std::string& k, int64_t shards) -> std::string {
    return testing::ErrorOf<ConfigError>(
        [&] { CheckReshard(Parse(kGood, {"fsdp.reshard_after_forward=" + k}), shards); });
  };
  EXPECT_EQ(mistake("null", 6), "");
  EXPECT_EQ(mistake("2", 6), "");
  EXPECT_EQ(mistake("3", 6), "");
  const std::string where = "--set fsdp.reshard_after_forward=4: fsdp.reshard_after_forward: ";
  EXPECT_EQ(mistake("4", 6), where +
                                 "want null or a divisor of the 6 ranks that share a copy, smaller "
                                 "than that: 2 or 3; got 4");
  EXPECT_EQ(mistake("4", 1), where +
                                 "want null or a divisor of the 1 ranks that share a copy, smaller "
                                 "than that: there is none; got 4");
  EXPECT_NE(mistake("6", 6), "");
  EXPECT_NE(mistake("2", 2), "");
}

TEST(CheckWorld, ShardSizeIsTheWorldOrHybrid) {
  const auto mistake = [](const std::vector<std::string>& overrides, int64_t world) -> std::string {
    return testing::ErrorOf<ConfigError>([&] { CheckWorld(Parse(kGood, overrides), world, 1); });
  };
  EXPECT_EQ(mistake({}, 4), "");
  EXPECT_EQ(mistake({"fsdp.shard_size=4"}, 4), "");
  EXPECT_EQ(mistake({"fsdp.sharding_strategy=no_shard", "fsdp.shard_size=1"}, 4), "");
  EXPECT_EQ(mistake({"fsdp.shard_size=2"}, 4),
            "--set fsdp.shard_size=2: fsdp.shard_size: want null or the world size 4 for "
            "`full_shard`, got 2; sharding in groups is `hybrid_shard`");
  EXPECT_NE(mistake({"fsdp.shard_size=8", "fsdp.sharding_strategy=shard_grad_op"}, 4)
                .find("`hybrid_shard_grad_op`"),
            std::string::npos);
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_grad_op"}) {
    const std::string hybrid = std::string("fsdp.sharding_strategy=") + strategy;
    for (const char* size : {"null", "1", "2", "3", "6"}) {
      EXPECT_EQ(mistake({hybrid, std::string("fsdp.shard_size=") + size}, 6), "");
    }
    EXPECT_EQ(mistake({hybrid, "fsdp.shard_size=4"}, 6),
              "--set fsdp.shard_size=4: fsdp.shard_size: want a divisor of the world size 6: 1, 2, "
              "3 or 6; got 4");
    EXPECT_NE(mistake({hybrid, "fsdp.shard_size=12"}, 6), "");
  }
  EXPECT_THROW(CheckWorld(Parse(kGood), 1, 2), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
