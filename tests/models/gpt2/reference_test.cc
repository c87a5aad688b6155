// Our GPT-2 against Hugging Face's in float64: what tools/reference/README.md describes, held to
// the rule that stands there, at worlds 1 to 4, with every strategy, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

void SetShape(const nlohmann::json& c, TinyRun& run) {
  Gpt2Config& config = run.config;
  config.hidden_size = c.at("n_embd");
  config.intermediate_size =
      c.at("n_inner").is_null() ? 4 * config.hidden_size : c.at("n_inner").get<int64_t>();
  config.num_hidden_layers = c.at("n_layer");
  config.num_attention_heads = c.at("n_head");
  config.vocab_size = c.at("vocab_size");
  config.max_position_embeddings = c.at("n_positions");
  config.layer_norm_epsilon = c.at("layer_norm_epsilon");
}

using Case = std::tuple<const char*, int, Strategy, bool>;  // Model, world, strategy, processes.

class ReferenceTest : public ::testing::TestWithParam<Case> {
 protected:
  TinyResult Run(TinyRun run) const {
    const auto [model, world, strategy, processes] = GetParam();
    run.world = world;
    run.options.executor.sharding_strategy = strategy;
    run.ranks = processes ? RunProcessRanks : RunThreadRanks;
    return Train(run);
  }

  const Reference reference_{std::string("tests/fixtures/gpt2/") + std::get<0>(GetParam()),
                             SetShape};
  Judge judge_{reference_};
};

TEST_P(ReferenceTest, LogitsLossAndGradients) { judge_.Batch(Run(reference_.BatchRun())); }

TEST_P(ReferenceTest, TwentySteps) {
  for (const std::string name : {"adamw", "sgd", "sgd_momentum"}) {
    const TinyRun run = reference_.TrainRun(name);
    judge_.Training(name, run, Run(run));
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto [model, world, strategy, processes] = info.param;
  constexpr const char* kStrategies[] = {"FullShard", "ShardGradOp", "HybridShard",
                                         "HybridShardGradOp", "NoShard"};
  return std::string(model) + "_" + std::to_string(world) + kStrategies[static_cast<int>(strategy)];
}

// AddressSanitizer takes ten times as long and learns nothing from more worlds.
#ifdef __SANITIZE_ADDRESS__
const auto kThreadWorlds = ::testing::Values(3);
const auto kProcessWorlds = ::testing::Values(2);
#else
const auto kThreadWorlds = ::testing::Values(2, 3, 4);
const auto kProcessWorlds = ::testing::Values(1, 2, 3, 4);
#endif

// In a world of one the strategies are one.
const auto kModels = ::testing::Values("odd_vocab", "odd_heads", "one_head");
const auto kStrategies =
    ::testing::Values(Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard);

INSTANTIATE_TEST_SUITE_P(Alone, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(1),
                                            ::testing::Values(Strategy::kFullShard),
                                            ::testing::Values(false)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Threads, ReferenceTest,
                         ::testing::Combine(kModels, kThreadWorlds, kStrategies,
                                            ::testing::Values(false)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Processes, ReferenceTest,
                         ::testing::Combine(kModels, kProcessWorlds, kStrategies,
                                            ::testing::Values(true)),
                         CaseName);

// Beside PyTorch's FSDP, whose gradients are of param_dtype until they are reduced.
class PrecisionTest : public ::testing::TestWithParam<PrecisionWay> {
 protected:
  const std::string folder_ = "tests/fixtures/gpt2/odd_heads";
  const Reference reference_{folder_, SetShape};
  const PrecisionReference precision_{reference_, folder_};
};

TEST_P(PrecisionTest, ErrorsAreAtMostTwicePyTorchs) {
  const auto [precision, world] = GetParam();
  precision_.Hold(precision, world);
}

class ScaleTest : public PrecisionTest {};

TEST_P(ScaleTest, ScalesAndSkipsArePyTorchs) {
  const auto [precision, world] = GetParam();
  precision_.HoldScales(precision, world);
}

TEST(FirstScaleTest, SkipsArePyTorchs) {
  const std::string folder = "tests/fixtures/gpt2/odd_heads";
  const Reference reference(folder, SetShape);
  PrecisionReference(reference, folder).HoldFirstScales();
}

INSTANTIATE_TEST_SUITE_P(BFloat16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, ScaleTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)), WayName);

}  // namespace
}  // namespace fsdp::testing
