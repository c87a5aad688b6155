// A RegNet that stops and goes on: its running statistics and counts of batches are those of the
// run that never stopped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/atomic_file.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::CheckpointFiles;
using testing::TrainRanks;
using testing::UnusedPath;
using Strings = std::vector<std::string>;
using json = testing::Json;

constexpr int kSteps = 6, kStop = 3;

// A step has 7 samples in micro-batches of 2: on one rank and on three the last rows are left over.
Recipe Load(const std::string& run, const Strings& more) {
  Strings all = {"run.dir=" + run};
  all.insert(all.end(), more.begin(), more.end());
  return ParseRecipe(
      {{"r.yaml",
        "model: {family: regnet, image_size: 9, num_channels: 2, num_labels: 5,\n"
        "        embedding_size: 6, hidden_sizes: [8, 12], depths: [1, 1], groups_width: 4}\n"
        "data: {train: {source: synthetic}, valid: {fraction: 0.2}}\n"
        "run: {threads: 1, timeout_s: 60}\n"
        "train: {steps: 6, micro_batch_size: 2, global_batch_size: 7}\n"
        "eval: {every: 3, steps: 1}\n"
        "log: {every: 1}\n"
        "optimizer: {name: sgd, lr: 0.05, momentum: 0.9}\n"
        "checkpoint: {every: 3, keep_last: 9}\n"
        "schedule: {name: constant}\n"}},
      all);
}

void Train(const std::string& run, int world, int steps, Strings settings) {
  settings.push_back("train.steps=" + std::to_string(steps));
  ASSERT_EQ(TrainRanks(world, Load(run, settings)), Strings(world, "0 "));
}

// Losses and norms of all steps, and losses of evaluations after every third, in order.
std::vector<double> Curve(const std::string& run) {
  std::vector<double> curve;
  std::istringstream lines(ReadWholeFile(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    const bool step = record["kind"] == "step";
    if (!step && !(record["kind"] == "eval" && record["step"].get<int>() % kStop == 0)) continue;
    curve.push_back(record["loss"]);
    if (step) curve.push_back(record["grad_norm"]);
  }
  return curve;
}

// The buffers of a checkpoint, by name; counts as what they are.
std::map<std::string, std::vector<double>> Buffers(const std::string& run, int step) {
  CheckpointReader reader(run + "/checkpoints/step_" + std::to_string(step));
  const std::shared_ptr<Model> model = MakeModel(ShapeFor(Load(run, {})));
  std::map<std::string, std::vector<double>> all;
  for (const ModelBuffer* buffer : BuffersOf(*model)) {
    const bool count = buffer->dtype() == DType::kInt64;
    std::vector<int64_t> memory(static_cast<size_t>(buffer->shape().NumElements()));
    const View view(reinterpret_cast<std::byte*>(memory.data()), buffer->dtype(), buffer->shape());
    reader.ReadTensor(kBuffersState, {buffer->name(), "", buffer->dtype(), buffer->shape()}, 0,
                      view);
    std::vector<double>& values = all[buffer->name()];
    for (int64_t i = 0; i < view.NumElements(); ++i) {
      values.push_back(count ? static_cast<double>(memory[i]) : double{view.As<float>()[i]});
    }
  }
  return all;
}

class BatchNormResume : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(BatchNormResume, GoesOnWithTheSameBits) {
  const auto& [batch_norm, world] = GetParam();
  const Strings settings = {std::string("train.batch_norm=") + batch_norm};
  const std::string want = UnusedPath("unbroken"), got = UnusedPath("stopped");
  Train(want, world, kSteps, settings);
  Train(got, world, kStop, settings);
  Train(got, world, kSteps, settings);
  EXPECT_EQ(Curve(want).size(), 2u * kSteps + 2);
  EXPECT_EQ(Curve(got), Curve(want));
  EXPECT_TRUE(CheckpointFiles(got) == CheckpointFiles(want)) << "other bytes";

  const auto stop = Buffers(got, kStop), end = Buffers(got, kSteps);
  EXPECT_EQ(end, Buffers(want, kSteps));
  const int waves = (7 + 2 * world - 1) / (2 * world);
  for (const auto& [name, values] : end) {
    if (name.ends_with("num_batches_tracked")) {
      EXPECT_EQ(values, std::vector<double>{static_cast<double>(kSteps * waves)}) << name;
    } else {
      EXPECT_NE(values, stop.at(name)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, BatchNormResume,
                         ::testing::Combine(::testing::Values("local", "sync"),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// Statistics over all ranks: whatever the ranks, a step is one micro-batch of 6 samples. Tolerances
// are those of RegNetRuns.WorldsAgreeWhereStatisticsAreOfAllRanks.
TEST(BatchNormWorlds, OtherWorldsGoOnToRounding) {
  const auto train = [](const std::string& run, int world, int steps) {
    Train(run, world, steps,
          {"train.batch_norm=sync", "train.global_batch_size=6",
           "train.micro_batch_size=" + std::to_string(6 / world)});
  };
  const std::string want = UnusedPath("one_world"), got = UnusedPath("chain");
  train(want, 1, kSteps);
  for (const auto& [world, steps] : std::vector<std::pair<int, int>>{{2, 2}, {3, 4}, {1, kSteps}}) {
    train(got, world, steps);
  }
  const std::vector<double> curve = Curve(got), same = Curve(want);
  ASSERT_EQ(curve.size(), 2u * kSteps + 2);
  ASSERT_EQ(same.size(), curve.size());
  for (size_t i = 0; i < curve.size(); ++i) EXPECT_NEAR(curve[i] / same[i], 1, 1e-4) << i;

  const auto buffers = Buffers(got, kSteps), others = Buffers(want, kSteps);
  for (const auto& [name, values] : others) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(buffers.at(name)[i] - values[i], 2);
      norm += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm) + 1e-6) << name;
  }
}

}  // namespace
}  // namespace fsdp
