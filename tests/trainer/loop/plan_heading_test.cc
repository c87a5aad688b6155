#include "trainer/loop/plan_heading.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "models/shape.h"
#include "trainer/nn/model.h"
#include "trainer/ops/cpu/kinds.h"
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

// A file names the kind of its CPU, and a note says where this process has another that matters.
TEST(PlanHeading, SaysOfWhichKernelsAFileIs) {
  const Recipe recipe;
  const ModelShape shape = *FindModelPreset("gpt2-124m");
  Hardware machine;
  machine.name = "a CPU";
  machine.device = Hardware::Device::kCpu;
  EXPECT_EQ(NoteOnKernels(machine, DType::kBFloat16), "");
  machine.kernels = ThisIsa().name;
  EXPECT_EQ(NoteOnKernels(machine, DType::kBFloat16), "");
  const std::string heading =
      PlanHeading(recipe, shape, *MakeModel(shape), 1, 1, DeviceType::kCpu, machine);
  EXPECT_TRUE(heading.ends_with(": a CPU, kernels " + ThisIsa().name + "\n")) << heading;
  machine.kernels = "amx_emulated";  // No process of a test has it.
  EXPECT_EQ(NoteOnKernels(machine, DType::kBFloat16),
            "note: the rates of a CPU are those of amx_emulated kernels, and this process has " +
                ThisIsa().name + ": a step in bf16 takes another time here\n");
  machine.kernels = ThisIsa().isa == Isa::kAvx2 ? "amx_emulated_on_avx2" : "amx_emulated";
  EXPECT_EQ(NoteOnKernels(machine, DType::kFloat32), "");
}

StepEstimate Estimate() {
  StepEstimate step;
  step.step_time_s = 16.284;
  step.samples_per_s = 7.8605;
  step.counted_per_s = 64393;
  step.tflops_per_device = 452.1;
  step.hardware_tflops_per_device = 467.9;
  step.floor_s = 0.01234;
  step.breakdown = {{"data", 0}, {"forward", 16.284}};
  step.calibrated_on = {"7b batch_2 256"};
  step.mfu = 0.45694;
  step.counted_per_day = 64393.0 * 86400;
  step.steps = 1000;
  step.run_s = 16284;
  step.device_hours = 289.5;
  return step;
}

TEST(EstimateText, IsAPurchaseInOneStyle) {
  RunPlan plan;
  plan.device = DeviceType::kCuda;
  EXPECT_EQ(EstimateToText(Estimate(), plan),
            "a step in time\n"
            "  step            16.3 s\n"
            "    forward       16.3 s\n"
            "  floor           12.3 ms\n"
            "  samples/s       7.86\n"
            "  tokens/s        64.4k\n"
            "  TFLOP/s         452 of the model, each device\n"
            "    of hardware   468\n"
            "  MFU             45.7 %\n"
            "  a day           5.56B tokens\n"
            "  the run         1000 steps, 4h31m, 1.05B tokens\n"
            "  GPU-hours       290\n"
            "  set from        7b batch_2 256\n");
}

// Neither a file's rate, nor tokens, nor the number of steps.
TEST(EstimateText, LeavesOutWhatIsNotKnown) {
  StepEstimate step = Estimate();
  step.mfu = step.counted_per_day = step.run_s = step.device_hours = std::nullopt;
  const std::string text = EstimateToText(step, RunPlan());
  EXPECT_EQ(text.find("MFU"), std::string::npos) << text;
  EXPECT_EQ(text.find("-hours"), std::string::npos) << text;
  EXPECT_NE(text.find("  a day           679k samples\n  the run         as long as train.epochs "
                      "takes, which its data decides\n"),
            std::string::npos)
      << text;
  step.run_s = 5e9, step.device_hours = 2e6;  // On CPUs.
  const std::string long_run = EstimateToText(step, RunPlan());
  EXPECT_NE(long_run.find("  the run         1000 steps, 158 y\n  device-hours    2.00M\n"),
            std::string::npos)
      << long_run;
}

TEST(EstimateText, EveryWordIsExplained) {
  const std::string terms = EstimateTerms();
  RunPlan plan;
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    plan.device = device;
    std::istringstream lines(EstimateToText(Estimate(), plan));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  ")) continue;
      const size_t begin = line.find_first_not_of(' ');
      const std::string word = line.substr(begin, line.find("  ", begin) - begin);
      EXPECT_NE(terms.find("\n  " + word + "  "), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace fsdp
