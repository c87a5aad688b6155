// Our ViT against those of Hugging Face and vit-pytorch in float64: what tools/reference/README.md
// describes, held to the rule that stands there, at worlds 1, 2, 3 and 5, with every strategy, on
// threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/vit/set_shape.h"

namespace fsdp::testing {
namespace {

class VitReferenceTest : public ReferenceSuite {
 protected:
  VitReferenceTest() : ReferenceSuite("vit", SetVitShape, VitRows) {}
};

constexpr const char* kModels[] = {"odd",  "one_patch", "no_bias",    "classes",     "pixels",
                                   "deep", "deep_wide", "deep_heads", "deep_narrow", "deep_layers"};

FSDP_REFERENCE_TESTS(VitReferenceTest, kModels, .threads = {2, 3, 5}, .processes = {2, 3});

}  // namespace
}  // namespace fsdp::testing
