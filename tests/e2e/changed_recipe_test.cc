// A resume with another recipe: what may change, what is said of it, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Json> Steps(const Job& job) { return OfKind(ReadMetrics(job.run_dir()), "step"); }

TEST(ChangedRecipe, OfAMicroBatchHasTheSameSamplesRoundedElsewhere) {
  Job job;
  ASSERT_EQ(job.Train({"checkpoint.every=5"}).code, 0);
  const std::vector<Json> whole = Steps(job);
  const Outcome resumed = job.Train({"checkpoint.resume=5", "train.micro_batch_size=1"});
  ASSERT_EQ(resumed.code, 0) << resumed.Text();
  EXPECT_TRUE(Has(resumed.out, "train.micro_batch_size is not the checkpoint's")) << resumed.out;
  const std::vector<Json> steps = Steps(job);
  ASSERT_EQ(steps.size(), whole.size());
  for (size_t i = 5; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["tokens"], whole[i]["tokens"]);
    EXPECT_NEAR(steps[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-4) << i;
  }
  // As it was, it says nothing.
  EXPECT_FALSE(Has(job.Train({"checkpoint.resume=5"}).out, "train.micro_batch_size"));
}

TEST(ChangedRecipe, GoesOnWhereItIsAllowedAndIsRecorded) {
  Job job;
  ASSERT_EQ(job.Train({"checkpoint.every=5"}).code, 0);
  const Strings changes = {"train.steps=12", "optimizer.lr=0.005", "schedule.name=linear",
                           "schedule.min_lr_ratio=0"};
  const Outcome refused = job.Train(changes);
  EXPECT_EQ(refused.code, 2) << refused.Text();
  EXPECT_TRUE(Has(refused.err, "or go on with it by checkpoint.allow_changed: [optimizer.lr]") &&
              Has(refused.err, "or go on with it by checkpoint.allow_changed: [schedule]"))
      << refused.err;
  Strings allowed = changes;
  allowed.push_back("checkpoint.allow_changed=[optimizer.lr, schedule]");
  const Outcome resumed = job.Train(allowed);
  ASSERT_EQ(resumed.code, 0) << resumed.Text();
  const Json changed = {"optimizer.lr: 0.01 -> 0.005", "schedule.name: constant -> linear",
                        "schedule.min_lr_ratio: 0.1 -> 0.0"};
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "resume").back()["recipe_changed"], changed);
  for (const Json& change : changed) {
    EXPECT_TRUE(Has(resumed.out, "recipe: " + change.get<std::string>())) << resumed.out;
  }
  // The rates that a run of 12 steps with these settings has.
  const std::vector<Json> steps = Steps(job);
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[9]["lr"], 0.01);
  EXPECT_NEAR(steps[10]["lr"].get<double>(), 0.005 / 12, 1e-12);
  EXPECT_EQ(steps[11]["lr"], 0);
  const Outcome report = Call({"report", job.run_dir()});
  ASSERT_EQ(report.code, 0) << report.Text();
  EXPECT_TRUE(
      Has(ReadFile(job.run_dir() + "/report.html"), "<br>optimizer.lr: 0.01 -&gt; 0.005<br>"));
  // From here on they are the run's, and need no leave.
  Strings on = changes;
  on[0] = "train.steps=13";
  const Outcome again = job.Train(on);
  EXPECT_EQ(again.code, 0) << again.Text();
  EXPECT_FALSE(OfKind(ReadMetrics(job.run_dir()), "resume").back().contains("recipe_changed"));
}

TEST(ChangedRecipe, WhoseWarmUpIsLongerThanTheRunWarmsUpOverAllOfIt) {
  Job job;
  const Outcome run = job.Train({"schedule.warmup_steps=40", "schedule.name=cosine"});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_TRUE(Has(run.out,
                  "schedule.warmup_steps: a warm-up of 40 steps, but the run has 10: this start "
                  "warms up over all of them"))
      << run.out;
  EXPECT_TRUE(Has(ReadFile(job.run_dir() + "/recipe.yaml"), "warmup_steps: 40"));
  const std::vector<Json> steps = Steps(job);
  ASSERT_EQ(steps.size(), 10u);
  for (int i = 0; i < 10; ++i) {
    EXPECT_NEAR(steps[i]["lr"].get<double>(), 0.001 * (i + 1), 1e-12) << i;
  }
  // A longer run has the recipe's.
  ASSERT_EQ(job.Train({"schedule.warmup_steps=40", "schedule.name=cosine", "train.steps=60"}).code,
            0);
  EXPECT_NEAR(Steps(job)[10]["lr"].get<double>(), 0.01 * 11 / 40, 1e-12);
}

}  // namespace
}  // namespace fsdp::e2e
