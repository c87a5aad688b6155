#include "trainer/nn/parameter.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(ParameterDeathTest, HasAnAddressOnlyWhileBound) {
  Parameter p("wte.weight", Shape{2, 3}, {}, true);
  EXPECT_DEATH(p.value(), "wte.weight is used while its unit is not gathered");
  EXPECT_DEATH(p.grad(), "wte.weight is given a gradient outside its unit's backward");
  std::byte memory[24];
  p.BindValue(memory);
  EXPECT_EQ(p.value().data, memory);
  EXPECT_EQ(p.value().shape, (Shape{2, 3}));
  EXPECT_DEATH(p.grad(), "outside");
  p.BindGrad(memory);
  EXPECT_EQ(p.grad().data, memory);
  p.BindValue(nullptr);
  p.BindGrad(nullptr);
  EXPECT_DEATH(p.value(), "not gathered");
  EXPECT_DEATH(p.grad(), "outside");
}

}  // namespace
}  // namespace fsdp
