// Our mixtures of experts against Hugging Face's Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE and dots1 in
// float64: what tools/reference/README.md describes, held to the rule that stands there, at worlds
// of 1, 2, 3 and 5, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/moe/set_shape.h"

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

}  // namespace
}  // namespace fsdp::testing
