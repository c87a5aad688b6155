// Our GPT-2 against Hugging Face's in float64: what tools/reference/README.md describes, held to
// the rule that stands there, at worlds 1 to 4, with every strategy, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/models/gpt2/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class ReferenceTest : public ReferenceSuite {
 protected:
  ReferenceTest() : ReferenceSuite("gpt2", SetGpt2Shape) {}
};

TEST_P(ReferenceTest, LogitsLossAndGradients) { HoldBatch(); }
TEST_P(ReferenceTest, TwentySteps) { HoldTrainings(); }

// AddressSanitizer takes ten times as long and learns nothing from more worlds.
#ifdef __SANITIZE_ADDRESS__
const std::vector<int> kThreadWorlds = {3}, kProcessWorlds = {2};
#else
const std::vector<int> kThreadWorlds = {2, 3, 4}, kProcessWorlds = {1, 2, 3, 4};
#endif

constexpr const char* kModels[] = {"odd_vocab", "odd_heads", "one_head", "untied"};

// In a world of one the strategies are one.
INSTANTIATE_TEST_SUITE_P(Alone, ReferenceTest,
                         ::testing::Combine(::testing::ValuesIn(kModels), ::testing::Values(1),
                                            ::testing::Values(Strategy::kFullShard),
                                            ::testing::Values(false)),
                         ReferenceCaseName);
INSTANTIATE_TEST_SUITE_P(Threads, ReferenceTest,
                         ::testing::ValuesIn(ReferenceCases(kModels, kThreadWorlds,
                                                            /*processes=*/false)),
                         ReferenceCaseName);
INSTANTIATE_TEST_SUITE_P(Processes, ReferenceTest,
                         ::testing::ValuesIn(ReferenceCases(kModels, kProcessWorlds,
                                                            /*processes=*/true)),
                         ReferenceCaseName);

// Beside PyTorch's FSDP, whose gradients are of param_dtype until they are reduced.
const char kFolder[] = "tests/fixtures/gpt2/odd_heads";

class PrecisionTest : public PrecisionSuite {
 protected:
  PrecisionTest() : PrecisionSuite(kFolder, SetGpt2Shape) {}
};

TEST_P(PrecisionTest, ErrorsAreAtMostTwicePyTorchs) { Hold(); }

class ScaleTest : public PrecisionTest {};

TEST_P(ScaleTest, ScalesAndSkipsArePyTorchs) { HoldScales(); }

TEST(FirstScaleTest, SkipsArePyTorchs) {
  const Reference reference(kFolder, SetGpt2Shape);
  PrecisionReference(reference, kFolder).HoldFirstScales();
}

INSTANTIATE_TEST_SUITE_P(BFloat16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, ScaleTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)), WayName);

}  // namespace
}  // namespace fsdp::testing
