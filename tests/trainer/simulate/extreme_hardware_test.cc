// Machines at and beyond the bounds of their numbers: a file is refused, or every time that comes
// of it is finite. Nothing dies.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/hardware_file.h"
#include "trainer/core/errors.h"
#include "trainer/loop/place.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/network.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;
using Values = std::map<std::string, std::string>;

constexpr char kRecipe[] =
    "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2,\n"
    "  vocab_size: 64, max_position_embeddings: 16}\n"
    "data: {train: {source: synthetic}, seq_len: 16}\n"
    "train: {steps: 2147483647, micro_batch_size: 1, global_batch_size: 8}\n";

struct Job {
  int world, local_world;
  Strings settings;
};
std::vector<Job> Jobs() {
  return {{4, 2, {"fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: bf16}"}},
          {2, 2, {"fsdp.buffers=caching", "fsdp.limiter=host"}},
          {1, 1, {"fsdp.sharding_strategy=no_shard", "fsdp.cpu_offload={optimizer: true}"}}};
}

std::string Text(double value, bool whole = false) {
  if (whole) return std::to_string(static_cast<int64_t>(value));
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

// Numbers in the middle of their bounds.
Values Middle() {
  Values values;
  for (const testing::HardwareNumber& number : testing::HardwareNumbers()) {
    const double least = number.least > 0 ? number.least : 1e-9 * number.most;
    values[number.key] = Text(std::sqrt(least * number.most), number.whole);
  }
  values["memory"] = values["host_memory"] = "68719476736";
  values["outside"] = "1073741824";
  values["network.ranks_per_host"] = "2";
  return values;
}

class ExtremeHardware : public ::testing::Test {
 protected:
  // "refused", "misfit" or "timed".
  static std::string EndOf(const Values& values, const Job& job, const std::string& device) {
    const std::string path = ::testing::TempDir() + "/extreme.yaml";
    std::ofstream(path) << testing::HardwareYaml(values, device);
    Hardware hardware;
    try {
      hardware = ReadHardware(path);
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("extreme.yaml:"), std::string::npos);
      return "refused";
    }
    const Recipe recipe = ParseRecipe({{"r", kRecipe}}, job.settings);
    ResolvedRun run = Resolve(recipe, PlaceToPlan(recipe, job.world, job.local_world, hardware));
    const auto simulation = SimulateAndPlan(run, hardware, {.slowest = job.world > 1 ? 1e6 : 1});
    if (!simulation) return "misfit";
    const StepEstimate step = EstimateOf(run, hardware, *simulation);
    EXPECT_TRUE(std::isfinite(step.step_time_s) && step.step_time_s >= 0) << step.step_time_s;
    for (const auto& [name, seconds] : step.breakdown) EXPECT_TRUE(std::isfinite(seconds)) << name;
    for (const double value : {step.floor_s, step.exposed_s, step.samples_per_s, *step.run_s,
                               *step.device_hours, step.mfu.value_or(0), step.tflops_per_device}) {
      EXPECT_TRUE(std::isfinite(value)) << value;
    }
    const std::string text = EstimateToText(step, run.plan);
    EXPECT_EQ(text.find_first_of('?'), std::string::npos) << text;
    EXPECT_EQ(PlanToJson(run.plan, step).find("\"step_time_s\": null"), std::string::npos);
    const Network network(hardware, job.world, job.local_world);
    for (int kind = 0; kind < kCollectives; ++kind) {
      const CollectiveCall call{
          .kind = static_cast<Collective>(kind), .dtype = DType::kFloat32, .n = int64_t{1} << 50};
      const auto all = network.ReachOf(RankGroup::World(/*rank=*/0, job.world));
      EXPECT_TRUE(std::isfinite(network.WorkOf(all, call).seconds)) << kind;
    }
    return "timed";
  }
  void Try(const Values& values) {
    for (const char* device : {"cuda", "cpu"}) {
      for (const Job& job : Jobs()) ++ends_[EndOf(values, job, device)];
    }
  }

  std::map<std::string, int> ends_;
};

TEST_F(ExtremeHardware, EachNumberIsRefusedOrTimed) {
  const Values middle = Middle();
  Try(middle);
  ASSERT_EQ(ends_["timed"], 6) << testing::HardwareYaml(middle);
  for (const auto& [key, value] : middle) {
    SCOPED_TRACE(key);
    for (const char* word :
         {"0", "-1", "1e-308", "5e-324", "1e308", ".nan", ".inf", "nan", "null"}) {
      SCOPED_TRACE(word);
      Values one = middle;
      one[key] = word;
      const Job job = Jobs()[ends_["timed"] % 3];
      try {
        ++ends_[EndOf(one, job, "cuda")];
      } catch (const ConfigError&) {  // A step needs a number that is null.
        EXPECT_STREQ(word, "null");
      }
    }
  }
  EXPECT_GT(ends_["refused"], 200);
  EXPECT_GT(ends_["timed"], 50);
}

// Together they are the slowest and the fastest machine, and what lies between: other ones of these
// at another commit.
TEST_F(ExtremeHardware, TheBoundsTogetherOverflowNothing) {
  const int machines = testing::Everything() ? 24 : 10;
  std::mt19937_64 random(20261128 + testing::Part(180));
  const std::vector<testing::HardwareNumber> numbers = testing::HardwareNumbers();
  const auto slow_at_most = [](const testing::HardwareNumber& number) {
    return number.key.ends_with("_s") || number.key.find("_s_per_byte") != std::string::npos ||
           number.key == "unfused_bytes" || number.key.starts_with("op_terms") ||
           number.key.starts_with("op_sides") || number.key.ends_with("ramp_bytes");
  };
  for (int machine = 0; machine < machines; ++machine) {
    SCOPED_TRACE(machine);
    Values values;
    for (const testing::HardwareNumber& number : numbers) {
      const bool rate = number.key.find("per_s") != std::string::npos &&
                        number.key.find("per_byte") == std::string::npos;
      const bool slow = !rate && slow_at_most(number);
      const bool most = machine == 0   ? slow
                        : machine == 1 ? !slow
                        : machine == 2 ? false
                        : machine == 3 ? true
                                       : random() % 2 == 0;
      values[number.key] = Text(most ? number.most : number.least, number.whole);
    }
    Try(values);
    values["memory"] = values["host_memory"] = Text(0x1p60, true);  // So that all is timed.
    values["outside"] = "0";
    Try(values);
  }
  EXPECT_EQ(ends_["refused"], 0);
  EXPECT_GE(ends_["timed"], machines * 6);
}

TEST_F(ExtremeHardware, ManyNumbersBeyondTheirBoundsAreOneError) {
  std::mt19937_64 random(7);
  for (int machine = 0; machine < 40; ++machine) {
    Values values = Middle();
    for (auto& [key, value] : values) {
      if (random() % 3 == 0) value = random() % 2 == 0 ? "1e300" : "1e-300";
    }
    values["copy_bytes_per_s"] = "1e300";
    EXPECT_EQ(EndOf(values, Jobs()[0], "cuda"), "refused");
  }
}

}  // namespace
}  // namespace fsdp
