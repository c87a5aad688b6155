// Our RegNet against that of Hugging Face in float64: what tools/reference/README.md
// describes, held to the rule that stands there, at worlds 1, 2, 3 and 5, with every strategy, on
// threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/models/regnet/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class ReferenceTest : public ReferenceSuite {
 protected:
  ReferenceTest() : ReferenceSuite("regnet", SetRegNetShape, RegNetRows) {}
};

TEST_P(ReferenceTest, LogitsLossAndGradients) { HoldBatch(); }
TEST_P(ReferenceTest, TwentySteps) { HoldTrainings(); }

// AddressSanitizer takes ten times as long and learns nothing from more worlds.
#ifdef __SANITIZE_ADDRESS__
const std::vector<int> kThreadWorlds = {3}, kProcessWorlds = {2};
#else
const std::vector<int> kThreadWorlds = {2, 3, 5}, kProcessWorlds = {2, 3};
#endif

constexpr const char* kModels[] = {"odd", "plain", "one_stage", "classes", "one_group"};

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

// Beside PyTorch's FSDP, which leaves batch norms out of mixed precision.
void SetMixedShape(const nlohmann::json& config, TinyRun& run) {
  SetRegNetShape(config, run);
  run.options.executor.mixed_precision.keep_fp32 = {"*.normalization.*"};
}

class PrecisionTest : public PrecisionSuite {
 protected:
  PrecisionTest() : PrecisionSuite("tests/fixtures/regnet/odd", SetMixedShape, RegNetRows) {}
};

TEST_P(PrecisionTest, ErrorsAreAtMostTwicePyTorchs) { HoldTogether(); }

INSTANTIATE_TEST_SUITE_P(BFloat16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)),
                         WayName);

}  // namespace
}  // namespace fsdp::testing
