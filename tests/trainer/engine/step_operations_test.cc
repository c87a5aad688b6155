#include "trainer/engine/step_operations.h"

#include <gtest/gtest.h>

#include <memory>

#include "models/make_model.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

// By hand for one block: 6 FLOPs for each weight of a matrix, and attention's two products.
TEST(StepOperations, FlopsOfASample) {
  const std::unique_ptr<Model> model = MakeModel(TinyRun::TinyLlama());
  const double block = 24 * (60 + 30 + 30) + 60 * 24 + 3 * 24 * 40;
  EXPECT_EQ(FlopsPerSample(*model, 7), 7 * (6 * (2 * block + 101 * 24) + 6 * 2 * 60 * 7));
}

}  // namespace
}  // namespace fsdp::testing
