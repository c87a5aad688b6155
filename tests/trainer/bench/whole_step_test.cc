#include <gtest/gtest.h>

#include "tests/testing/fresh_directory.h"
#include "trainer/bench/calibrate.h"
#include "trainer/core/errors.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;

Recipe SmallRecipe(const std::string& steps) {
  return ParseRecipe(
      {{"recipe.yaml",
        "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2,\n"
        "  vocab_size: 64, max_position_embeddings: 16}\n"
        "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
        "run: {threads: 1}\n"
        "log: {every: 1}\n"
        "checkpoint: {every: null}\n"
        "train: {micro_batch_size: 1, global_batch_size: 1, steps: " +
            steps + "}\n"}});
}

// Launches are a third of its step, which no share of a rate makes longer.
Hardware Machine() {
  Hardware hardware;
  hardware.name = "a machine";
  hardware.device = Hardware::Device::kCpu;
  hardware.memory = int64_t{1} << 30;
  hardware.cores = 1;
  hardware.fp32_flops = 1e10;
  hardware.attention_forward_flops = hardware.attention_backward_flops = 1e10;
  hardware.copy_bytes_per_s = 1e10;
  hardware.launch_s = 1e-6;
  return hardware;
}

TEST(WholeStep, FindsTheShareOfASimulatedStep) {
  const Recipe recipe = SmallRecipe("4");
  for (const double share : {0.3, 0.85, 1.0}) {
    Hardware hardware = Machine();
    hardware.reached = share;
    ResolvedRun run = Resolve(recipe, PlaceToPlan(recipe, 1, 1, hardware));
    const double seconds = SimulateAndPlan(run, hardware, {})->step_s;
    EXPECT_NEAR(ReachedBy(seconds, recipe, Machine()), share, 1e-6);
    EXPECT_LE(ReachedBy(seconds / 2, recipe, Machine()), 1);
  }
}

TEST(WholeStep, IsTimedBehindTwoOthers) {
  const ChosenDevice cpu;
  EXPECT_GT(SecondsOfAStep(SmallRecipe("4"), cpu, FreshDirectory("whole_step")), 0);
  EXPECT_THROW(SecondsOfAStep(SmallRecipe("2"), cpu, FreshDirectory("two_steps")), ConfigError);
}

}  // namespace
}  // namespace fsdp
