// train.attention: the same model trains to the same losses by attention in tiles and by that which
// keeps its probabilities.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

struct Case {
  const char* name;
  int world;
  Strings settings;
  double tolerance;  // For losses near 5: some roundings of fp32; with bf16, of activations.
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionTest, MathTrainsToTheLossesOfFlash) {
  const Case& c = GetParam();
  Job job;
  const auto train = [&](const std::string& attention) {
    job.RunDir(attention);
    Strings settings = c.settings;
    // AdamW would make steps of the size of lr out of roundings.
    settings.insert(settings.end(), {"train.attention=" + attention,
                                     "optimizer={name: sgd, lr: 0.1}", "log.every=1"});
    const Outcome outcome = c.world == 1 ? job.Train(settings) : job.Launch(c.world, settings);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    const bool says =
        outcome.out.find("attention: own kernels (train.attention: math)") != std::string::npos;
    EXPECT_EQ(says, attention == "math") << outcome.Text();
    std::vector<double> losses;
    for (const Json& record : OfKind(ReadMetrics(job.run_dir()), "step")) {
      losses.push_back(record["loss"]);
    }
    Strings plan = {"plan", "--json", "--world-size", std::to_string(c.world)};
    for (const std::string& flag : job.Flags(settings)) plan.push_back(flag);
    const Outcome planned = Call(plan);
    EXPECT_EQ(planned.code, 0) << planned.Text();
    return std::pair(losses, Json::parse(planned.out)["memory"]["activations"].get<int64_t>());
  };
  const auto [flash, less] = train("flash");
  const auto [math, more] = train("math");
  ASSERT_EQ(math.size(), 10u);
  ASSERT_EQ(flash.size(), 10u);
  for (size_t i = 0; i < math.size(); ++i) EXPECT_NEAR(math[i], flash[i], c.tolerance) << i;
  EXPECT_LT(math.back(), math.front() - 10 * c.tolerance);
  EXPECT_GT(more, less);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, AttentionTest,
    ::testing::Values(
        Case{"gpt2", 1, {}, 2e-5},
        Case{"gpt2_dropout_on_two_ranks", 2, {"model.attention_dropout=0.2"}, 2e-5},
        Case{"llama_in_groups", 2, {"model.family=llama", "model.num_key_value_heads=1"}, 2e-5},
        Case{"llama_bf16",
             1,
             {"model.family=llama", "fsdp.mixed_precision.param_dtype=bf16"},
             1e-2}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::e2e
