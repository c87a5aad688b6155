// Our DHEN against modules of PyTorch in float64: what tools/reference/README.md describes, held to
// the rule that stands there, at worlds 1, 2, 3 and 5, with every strategy, on threads and on
// processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <vector>

#include "models/dhen/config.h"
#include "tests/models/dhen/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class ReferenceTest : public ReferenceSuite {
 protected:
  ReferenceTest() : ReferenceSuite("dhen", SetDhenShape, DhenRows) {}
};

TEST_P(ReferenceTest, LogitsLossAndGradients) { HoldBatch(); }
TEST_P(ReferenceTest, TwentySteps) { HoldTrainings(); }

// AddressSanitizer takes ten times as long and learns nothing from more worlds.
#ifdef __SANITIZE_ADDRESS__
const std::vector<int> kThreadWorlds = {3}, kProcessWorlds = {2};
#else
const std::vector<int> kThreadWorlds = {2, 3, 5}, kProcessWorlds = {2, 3};
#endif

constexpr const char* kModels[] = {"odd", "alike", "least", "many", "deep"};

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

// Beside PyTorch's FSDP, with embedding tables, which FSDP has neither there nor here.
const char kFolder[] = "tests/fixtures/dhen/odd";

template <TableDType dtype>
void SetTables(const nlohmann::json& config, TinyRun& run) {
  SetTableDhenShape(config, dtype, run);
}

class PrecisionTest : public PrecisionSuite {
 protected:
  PrecisionTest() : PrecisionSuite(kFolder, SetTables<TableDType::kFloat32>, TableDhenRows) {}
};

TEST_P(PrecisionTest, ErrorsAreAtMostTwicePyTorchs) { HoldTogether(); }

INSTANTIATE_TEST_SUITE_P(BFloat16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);

TEST(Bf16TableTest, MeansOfRowsAreAtMostTwiceAsFarOff) {
  const Reference reference(kFolder, SetTables<TableDType::kBFloat16>, TableDhenRows);
  PrecisionReference(reference, kFolder)
      .HoldMeanRows({DType::kBFloat16, DType::kBFloat16, DType::kFloat32}, /*world=*/1);
}

}  // namespace
}  // namespace fsdp::testing
