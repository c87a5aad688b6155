// Our Llama against Hugging Face's Llama, Mistral, Qwen2 and Qwen3 in float64: what
// tools/reference/README.md describes, held to the rule that stands there, at worlds of 1, 2, 3 and
// 5, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/llama/set_shape.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

class LlamaReferenceTest : public ReferenceSuite {
 protected:
  LlamaReferenceTest() : ReferenceSuite("llama", SetLlamaShape) {}
};

constexpr const char* kModels[] = {"llama_6_2", "llama_biases", "qwen2_8_1", "qwen3_documents",
                                   "mistral_dynamic"};

FSDP_REFERENCE_TESTS(LlamaReferenceTest, kModels, .threads = {2, 3, 5}, .processes = {2},
                     .with_every_strategy = 3);

// Beside PyTorch's FSDP, whose gradients are of param_dtype until they are reduced.
class LlamaPrecisionTest : public PrecisionSuite {
 protected:
  LlamaPrecisionTest() : PrecisionSuite("tests/fixtures/llama/llama_6_2", SetLlamaShape) {}
};

TEST_P(LlamaPrecisionTest, ErrorsAreAtMostTwicePyTorchs) { Hold(); }

FSDP_INSTANTIATE_PRECISION_TEST(LlamaPrecisionTest);

}  // namespace
}  // namespace fsdp::testing
