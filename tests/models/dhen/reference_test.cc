// Our DHEN against modules of PyTorch in float64: what tools/reference/README.md describes, held to
// the rule that stands there, at worlds 1, 2, 3 and 5, with every strategy, on threads and on
// processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "models/dhen/config.h"
#include "tests/models/dhen/set_shape.h"
#include "tests/testing/json.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class DhenReferenceTest : public ReferenceSuite {
 protected:
  DhenReferenceTest() : ReferenceSuite("dhen", SetDhenShape, DhenRows) {}
};

constexpr const char* kModels[] = {"odd", "alike", "least", "many", "deep"};

FSDP_REFERENCE_TESTS(DhenReferenceTest, kModels, .threads = {2, 3, 5}, .processes = {2, 3});

// Beside PyTorch's FSDP, with embedding tables, which FSDP has neither there nor here.
const char kFolder[] = "tests/fixtures/dhen/odd";

template <TableDType dtype>
void SetTables(const testing::Json& config, TinyRun& run) {
  SetTableDhenShape(config, dtype, run);
}

class DhenPrecisionTest : public PrecisionSuite {
 protected:
  DhenPrecisionTest() : PrecisionSuite(kFolder, SetTables<TableDType::kFloat32>, TableDhenRows) {}
};

TEST_P(DhenPrecisionTest, ErrorsAreAtMostTwicePyTorchs) { HoldTogether(); }

INSTANTIATE_TEST_SUITE_P(BFloat16, DhenPrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);

TEST(Bf16TableTest, MeansOfRowsAreAtMostTwiceAsFarOff) {
  const Reference reference(kFolder, SetTables<TableDType::kBFloat16>, TableDhenRows);
  PrecisionReference(reference, kFolder)
      .HoldMeanRows({DType::kBFloat16, DType::kBFloat16, DType::kFloat32}, /*world=*/1);
}

}  // namespace
}  // namespace fsdp::testing
