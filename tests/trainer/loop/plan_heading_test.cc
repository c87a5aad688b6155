#include "trainer/loop/plan_heading.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "models/shape.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

TEST(PlanHeading, IsModelStepAndMachineInTwoLines) {
  Recipe recipe;
  recipe.train.global_batch_size = 512;
  recipe.data.seq_len = 1024;
  const ModelShape shape = *FindModelPreset("gpt2-124m");
  const std::shared_ptr<Model> model = MakeModel(shape);
  Hardware machine;
  machine.name = "a GPU\n";
  EXPECT_EQ(PlanHeading(recipe, shape, *model, 8, 4, DeviceType::kCuda, machine),
            "gpt2, 12 layers x 768, 124,439,808 parameters, in steps of 512 x 1,024 = 524,288 "
            "tokens\non cuda, 8 ranks, 4 to a host: a GPU\\x0a\n");

  for (Parameter* p : model->segments()[0].parameters) p->Freeze();
  const std::string here = PlanHeading(recipe, shape, *model, 1, 1, DeviceType::kCpu, std::nullopt);
  EXPECT_NE(here.find("trains 85,056,000 of 124,439,808 parameters,"), std::string::npos) << here;
  EXPECT_NE(here.find("\non cpu, 1 rank: this machine, "), std::string::npos) << here;
}

}  // namespace
}  // namespace fsdp
