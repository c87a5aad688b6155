// Our T5 against Hugging Face's in float64: what tools/reference/README.md describes, held to the
// rule that stands there, at worlds 1 to 3, with every strategy, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include "tests/models/t5/set_shape.h"

namespace fsdp::testing {
namespace {

class T5ReferenceTest : public ReferenceSuite {
 protected:
  T5ReferenceTest() : ReferenceSuite("t5", SetT5Shape, T5Rows) {}
};

constexpr const char* kModels[] = {"relu", "gated", "one_head", "far", "tied_gated"};

FSDP_REFERENCE_TESTS(T5ReferenceTest, kModels, .threads = {2, 3}, .processes = {2, 3});

}  // namespace
}  // namespace fsdp::testing
