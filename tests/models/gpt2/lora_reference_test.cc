// Our adapters against PEFT's on Hugging Face's GPT-2 in float64, as reference_test.cc holds the
// model itself.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/models/gpt2/set_shape.h"
#include "tests/testing/json.h"
#include "tests/testing/reference.h"

namespace fsdp::testing {
namespace {

void SetShape(const testing::Json& c, TinyRun& run) {
  SetGpt2Shape(c, run);
  run.lora = LoraOptions{3, 7, {"*attn.c_attn.weight", "*mlp.c_proj.weight"}};
}

using Case = std::tuple<int, Strategy>;  // World.

class LoraReferenceTest : public ::testing::TestWithParam<Case> {
 protected:
  TinyResult Run(TinyRun run) const {
    std::tie(run.world, run.options.executor.sharding_strategy) = GetParam();
    return Train(run);
  }

  const Reference reference_{"tests/fixtures/lora/gpt2", SetShape};
  Judge judge_{reference_};
};

TEST_P(LoraReferenceTest, LogitsLossAndGradients) {
  const TinyResult got = Run(reference_.BatchRun());
  judge_.Batch(got);
  EXPECT_EQ(got.gradients.size(), 2 * 2 * 2u);  // A and B of two weights of two layers.
}

TEST_P(LoraReferenceTest, TwentySteps) {
  judge_.Trainings([this](const TinyRun& run) { return Run(run); });
}

INSTANTIATE_TEST_SUITE_P(Worlds, LoraReferenceTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(Strategy::kFullShard,
                                                              Strategy::kShardGradOp,
                                                              Strategy::kNoShard)));

}  // namespace
}  // namespace fsdp::testing
