// Our mixtures of experts against Hugging Face's Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE and dots1 in
// float64: what tools/reference/README.md describes, held to the rule that stands there, at worlds
// of 1, 2, 3 and 5, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/models/moe/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class MoeReferenceTest : public ReferenceSuite {
 protected:
  MoeReferenceTest() : ReferenceSuite("moe", SetMoeShape) {}
};

constexpr const char* kModels[] = {"mixtral_5_2", "mixtral_3_3", "qwen2_6_4", "qwen2_4_1",
                                   "qwen3_7_2",   "qwen3_4_1",   "olmoe_6_3", "olmoe_8_2",
                                   "dots_8_3",    "dots_5_2"};

FSDP_REFERENCE_TESTS(MoeReferenceTest, kModels, .threads = {2, 3, 5}, .processes = {2},
                     .with_every_strategy = 3);

// Shapes at the edges of what there is: one token, three ids, one expert a token, all of them.
class MoeOddShapeTest : public MoeReferenceTest {};

constexpr const char* kOddModels[] = {"mixtral_6_1", "mixtral_7_7", "mixtral_4_3", "qwen2_3_2",
                                      "qwen2_6_6",   "qwen2_5_1",   "qwen3_6_5",   "qwen3_3_3",
                                      "qwen3_5_1",   "olmoe_6_1",   "olmoe_5_5",   "olmoe_3_2",
                                      "dots_6_2",    "dots_4_4",    "dots_6_1"};

FSDP_REFERENCE_TESTS(MoeOddShapeTest, kOddModels, .threads = {2, 3}, .processes = {});

// More ranks than experts.
class MoeOfEightRanksTest : public ::testing::TestWithParam<std::tuple<const char*, Strategy>> {};

TEST_P(MoeOfEightRanksTest, IsTheReference) {
  const auto& [name, strategy] = GetParam();
  const Reference reference(std::string("tests/fixtures/moe/") + name, SetMoeShape);
  Judge judge(reference);
  const auto train = [strategy = strategy](TinyRun run) {
    run.world = 8;
    run.options.executor.sharding_strategy = strategy;
    if (IsHybrid(strategy)) run.options.executor.shard_size = 4;
    return Train(run);
  };
  judge.Batch(train(reference.BatchRun()));
  judge.Trainings(train);
}

INSTANTIATE_TEST_SUITE_P(Worlds, MoeOfEightRanksTest,
                         ::testing::Combine(::testing::Values("qwen3_6_5", "dots_6_2"),
                                            ::testing::Values(Strategy::kFullShard,
                                                              Strategy::kHybridShard)));

// Beside PyTorch's FSDP in bf16, with the router in fp32 on both sides.
class MixtralPrecisionTest : public PrecisionSuite {
 protected:
  MixtralPrecisionTest() : PrecisionSuite("tests/fixtures/moe/mixtral_4_3", SetMoeShape) {}
};
class Qwen2MoePrecisionTest : public PrecisionSuite {
 protected:
  Qwen2MoePrecisionTest() : PrecisionSuite("tests/fixtures/moe/qwen2_3_2", SetMoeShape) {}
};

TEST_P(MixtralPrecisionTest, ErrorsAreAtMostTwicePyTorchs) { Hold(); }
TEST_P(Qwen2MoePrecisionTest, ErrorsAreAtMostTwicePyTorchs) { HoldTogether(); }

INSTANTIATE_TEST_SUITE_P(BFloat16, MixtralPrecisionTest,
                         ::testing::ValuesIn(WaysOf(DType::kBFloat16)), WayName);
INSTANTIATE_TEST_SUITE_P(BFloat16, Qwen2MoePrecisionTest,
                         ::testing::ValuesIn(WaysOf(DType::kBFloat16)), WayName);

// The batch and the runs once more, with 0.3 aux + 0.02 z and biases that move by 0.01 a step.
class MoeBalanceTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

// Mean over mixtures of the mean over samples that the tallies say: `which` 0 is aux, 1 is z.
double FromTallies(const TinyResult& ours, size_t which) {
  double sum = 0;
  int mixtures = 0;
  for (const auto& [name, tally] : ours.buffers) {
    if (!name.ends_with("tally")) continue;
    const float* const sums = tally.data() + tally.size() - 3;
    sum += static_cast<double>(sums[1 + which]) / sums[0];
    ++mixtures;
  }
  return sum / mixtures;
}

// Mixture by mixture, in order.
std::vector<int32_t> LoadsFromTallies(const TinyResult& ours) {
  std::vector<int32_t> loads;
  for (const auto& [name, tally] : ours.buffers) {
    if (!name.ends_with("tally")) continue;
    for (size_t e = 0; e < (tally.size() - 3) / 2; ++e) {
      loads.push_back(static_cast<int32_t>(tally[e]));
    }
  }
  return loads;
}

TEST_P(MoeBalanceTest, GradientsHaveTheBalanceLosses) {
  const auto& [name, world] = GetParam();
  const std::string folder = std::string("tests/fixtures/moe/") + name;
  const Reference reference(folder, SetMoeShape, nullptr, folder + "/balance.safetensors");
  Judge judge(reference);
  const auto train = [world = world](TinyRun run, double bias_rate) {
    run.world = world;
    run.options.executor.balance = {.aux_loss = 0.3, .z_loss = 0.02, .bias_rate = bias_rate};
    return Train(run);
  };
  judge.Trainings([&](const TinyRun& run) { return train(run, 0.01); });
  const TinyResult ours = train(reference.BatchRun(), 0);  // Its loss is measured behind the step.
  judge.Batch(ours);
  EXPECT_EQ(LoadsFromTallies(ours), reference.Ints("batch/loads"));
  for (const size_t which : {0, 1}) {
    const double want = reference.Doubles(which == 0 ? "batch/aux" : "batch/z")[0];
    EXPECT_NEAR(FromTallies(ours, which), want, 2e-6 * want);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MoeBalanceTest,
                         ::testing::Combine(::testing::Values("mixtral_5_2", "qwen2_6_4",
                                                              "dots_8_3"),
                                            ::testing::Values(1, 2, 3, 4)));

}  // namespace
}  // namespace fsdp::testing
