// Our GPT-2 against Hugging Face's in float64: what tools/reference/README.md describes, held to
// the rule that stands there, at worlds 1 to 4, with every strategy, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/gpt2/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class Gpt2ReferenceTest : public ReferenceSuite {
 protected:
  Gpt2ReferenceTest() : ReferenceSuite("gpt2", SetGpt2Shape) {}
};

constexpr const char* kModels[] = {"odd_vocab", "odd_heads", "one_head", "untied"};

FSDP_REFERENCE_TESTS(Gpt2ReferenceTest, kModels, .threads = {2, 3, 4}, .processes = {1, 2, 3, 4});

// Beside PyTorch's FSDP, whose gradients are of param_dtype until they are reduced.
const char kFolder[] = "tests/fixtures/gpt2/odd_heads";

class Gpt2PrecisionTest : public PrecisionSuite {
 protected:
  Gpt2PrecisionTest() : PrecisionSuite(kFolder, SetGpt2Shape) {}
};

TEST_P(Gpt2PrecisionTest, ErrorsAreAtMostTwicePyTorchs) { Hold(); }

class ScaleTest : public Gpt2PrecisionTest {};

TEST_P(ScaleTest, ScalesAndSkipsArePyTorchs) { HoldScales(); }

TEST(FirstScaleTest, SkipsArePyTorchs) {
  const Reference reference(kFolder, SetGpt2Shape);
  PrecisionReference(reference, kFolder).HoldFirstScales();
}

FSDP_INSTANTIATE_PRECISION_TEST(Gpt2PrecisionTest);
INSTANTIATE_TEST_SUITE_P(Float16, ScaleTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)), WayName);

}  // namespace
}  // namespace fsdp::testing
