// Our RegNet against that of Hugging Face in float64: what tools/reference/README.md
// describes, held to the rule that stands there, at worlds 1, 2, 3 and 5, with every strategy, on
// threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/regnet/set_shape.h"
#include "tests/testing/json.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class RegNetReferenceTest : public ReferenceSuite {
 protected:
  RegNetReferenceTest() : ReferenceSuite("regnet", SetRegNetShape, RegNetRows) {}
};

constexpr const char* kModels[] = {"odd", "plain", "one_stage", "classes", "one_group"};

FSDP_REFERENCE_TESTS(RegNetReferenceTest, kModels, .threads = {2, 3, 5}, .processes = {2, 3});

// Beside PyTorch's FSDP, which leaves batch norms out of mixed precision.
void SetMixedShape(const testing::Json& config, TinyRun& run) {
  SetRegNetShape(config, run);
  run.options.executor.mixed_precision.keep_fp32 = {"*.normalization.*"};
}

class RegNetPrecisionTest : public PrecisionSuite {
 protected:
  RegNetPrecisionTest() : PrecisionSuite("tests/fixtures/regnet/odd", SetMixedShape, RegNetRows) {}
};

TEST_P(RegNetPrecisionTest, ErrorsAreAtMostTwicePyTorchs) { HoldTogether(); }

FSDP_INSTANTIATE_PRECISION_TEST(RegNetPrecisionTest);

}  // namespace
}  // namespace fsdp::testing
