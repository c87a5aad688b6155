#include "trainer/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/full_disk.h"
#include "tests/trainer/observe/event_reader.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using Values = std::vector<std::pair<int64_t, float>>;

StepRecord Step(int64_t step) {
  return {.step = step, .loss = 5.0 / static_cast<double>(step), .memory = {1, 2, 3}};
}

void Put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

TEST(TensorBoard, RecordsBecomeEvents) {
  const std::string directory = FreshDirectory("events");
  const auto before = static_cast<double>(std::time(nullptr));
  TensorBoardWriter writer(directory, 0);
  writer.Text("recipe", 0, "run:\n  name: a");
  writer.Write(RunRecord{.name = "a"});  // Nothing to show.
  StepRecord step{.step = 300,
                  .loss = 2.25,
                  .loss_mean = 2.5,
                  .grad_norm = NAN,
                  .lr = 3e-4,
                  .tokens = 24576,
                  .step_time_s = 0.5,
                  .tokens_per_s = 16384,
                  .targets_per_s = 12288,
                  .samples_per_s = 16,
                  .tflops_per_device = 0.0625,
                  .mfu = 0.41,
                  .memory = {1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20},
                  .time = {1, 2, 3, 4, 5, 6, 7, 8},
                  .communication = {10, 20, 30, 40, 50}};
  writer.Write(step);
  writer.Write(EvalRecord{.step = 300, .loss = 1.5});
  writer.Write(EvalRecord{.step = 300, .loss = 0, .name = "code"});
  writer.Write(SampleRecord{.step = 300, .prompt = "# a", .text = "b\n<i>\xff"});

  // Readable while it is being written.
  const std::vector<std::string> files = TensorBoardFiles(directory);
  ASSERT_EQ(files.size(), 1u);
  const std::vector<TensorBoardEvent> events = ReadEvents(files[0]);
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].step, 0);
  EXPECT_TRUE(events[1].session_start);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[2].texts.at("recipe"), "    run:\n      name: a");
  for (const TensorBoardEvent& event : events) {
    EXPECT_GE(event.wall_time, before);
    EXPECT_LE(event.wall_time, before + 1e5);
  }
  EXPECT_TRUE(std::isnan(events[3].scalars.at("train/grad_norm")));
  auto scalars = events[3].scalars;
  scalars.erase("train/grad_norm");
  EXPECT_EQ(scalars, (std::map<std::string, float>{{"train/loss", 2.25f},
                                                   {"train/loss_mean", 2.5f},
                                                   {"train/lr", 3e-4f},
                                                   {"speed/step_time_s", 0.5f},
                                                   {"speed/tokens_per_s", 16384},
                                                   {"speed/targets_per_s", 12288},
                                                   {"speed/samples_per_s", 16},
                                                   {"speed/tflops_per_device", 0.0625f},
                                                   {"speed/mfu", 0.41f},
                                                   {"time/data", 1},
                                                   {"time/forward", 2},
                                                   {"time/recompute", 3},
                                                   {"time/backward", 4},
                                                   {"time/optimizer", 5},
                                                   {"time/communication", 6},
                                                   {"time/offload", 7},
                                                   {"time/other", 8},
                                                   {"memory/allocated_peak", 1 << 20},
                                                   {"memory/active_peak", 2 << 20},
                                                   {"memory/reserved_peak", 3 << 20},
                                                   {"memory/host", 4 << 20},
                                                   {"memory/disk", 5 << 20},
                                                   {"communication/all_gather_bytes", 10},
                                                   {"communication/reduce_scatter_bytes", 20},
                                                   {"communication/all_reduce_bytes", 30},
                                                   {"communication/all_to_all_bytes", 40},
                                                   {"communication/network_bytes", 50}}));
  EXPECT_EQ(events[3].step, 300);
  EXPECT_EQ(events[4].scalars,
            (std::map<std::string, float>{{"eval/loss", 1.5f}, {"eval/perplexity", 4.48168907f}}));
  EXPECT_EQ(events[5].scalars,
            (std::map<std::string, float>{{"eval/code/loss", 0}, {"eval/code/perplexity", 1}}));
  EXPECT_EQ(events[6].texts.at("sample"), "    # ab\n    <i>\\xff");
  EXPECT_EQ(events[6].step, 300);
}

TEST(TensorBoard, AbsentMfuIsNoScalar) {
  const std::string directory = FreshDirectory("mfu");
  TensorBoardWriter(directory, 0).Write(Step(1));
  EXPECT_EQ(ReadScalar(directory, "speed/mfu"), Values());
  EXPECT_EQ(ReadScalar(directory, "train/loss"), (Values{{1, 5}}));
}

// A float ends at 3.4e38, e^88.7.
TEST(TensorBoard, PerplexityThatIsNotFiniteIsNoScalar) {
  const std::string directory = FreshDirectory("perplexity");
  TensorBoardWriter writer(directory, 0);
  for (const double loss : {88.0, 89.0, 710.0, double{NAN}}) writer.Write(EvalRecord{1, loss});
  EXPECT_EQ(ReadScalar(directory, "eval/loss").size(), 4u);
  EXPECT_EQ(ReadScalar(directory, "eval/perplexity"),
            (Values{{1, static_cast<float>(std::exp(88.0))}}));
}

TEST(TensorBoard, AnEvaluationHasTheModelsMetric) {
  const std::string directory = FreshDirectory("metric");
  TensorBoardWriter writer(directory, 0);
  writer.Write(EvalRecord{.step = 1, .loss = 2, .metric = &kAccuracy, .mean = 0.75});
  writer.Write(EvalRecord{.step = 2, .loss = 2, .metric = &kNormalizedEntropy, .mean = 1});
  writer.Write(EvalRecord{.step = 3, .loss = 2, .metric = nullptr});
  EXPECT_EQ(ReadScalar(directory, "eval/loss").size(), 3u);
  EXPECT_EQ(ReadScalar(directory, "eval/accuracy"), (Values{{1, 0.75f}}));
  EXPECT_EQ(ReadScalar(directory, "eval/normalized_entropy"), Values());
  EXPECT_EQ(ReadScalar(directory, "eval/perplexity"), Values());
}

// As TensorBoard reads it: by name. Three starts within a second.
TEST(TensorBoard, LaterFilesHaveLaterNames) {
  const std::string directory = FreshDirectory("names");
  Put(directory + "/events.out.tfevents.99999999999.far.1.0", "");  // A clock ahead.
  for (int64_t step = 1; step <= 3; ++step)
    TensorBoardWriter(directory, step - 1).Write(Step(step));
  EXPECT_EQ(ReadScalar(directory, "train/loss"), (Values{{1, 5}, {2, 2.5f}, {3, 5 / 3.f}}));
  EXPECT_EQ(TensorBoardFiles(directory).size(), 4u);
  EXPECT_TRUE(TensorBoardFiles(directory + "/none").empty());
}

TEST(TensorBoard, ResumeLeavesEachStepOnce) {
  const std::string directory = FreshDirectory("resume");
  {
    TensorBoardWriter writer(directory, 0);
    for (int64_t step = 1; step <= 5; ++step) writer.Write(Step(step));
    writer.Write(EvalRecord{.step = 5, .loss = 9});
  }
  TrimTensorBoard(directory, 3);
  TensorBoardWriter(directory, 3).Write(Step(4));
  EXPECT_EQ(ReadScalar(directory, "train/loss"),
            (Values{{1, 5}, {2, 2.5f}, {3, 5 / 3.f}, {4, 1.25f}}));
  EXPECT_EQ(ReadScalar(directory, "eval/loss"), Values());
  // A session start tells a TensorBoard that has read them already.
  const std::vector<std::string> files = TensorBoardFiles(directory);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_TRUE(ReadEvents(files[0])[1].session_start);
  EXPECT_TRUE(ReadEvents(files[1])[1].session_start);
  EXPECT_EQ(ReadEvents(files[1])[1].step, 4);

  // Behind the start of the second file: it stays. Before: it goes, and so does one without steps.
  TrimTensorBoard(directory, 4);
  EXPECT_EQ(TensorBoardFiles(directory), files);
  TensorBoardWriter(directory, 4);
  TrimTensorBoard(directory, 2);
  EXPECT_EQ(TensorBoardFiles(directory), (std::vector<std::string>{files[0]}));
  EXPECT_EQ(ReadScalar(directory, "train/loss"), (Values{{1, 5}, {2, 2.5f}}));
}

// kill -9 or a power cut in the middle of a record, at each of its bytes.
TEST(TensorBoard, BrokenTailIsCutOff) {
  const std::string directory = FreshDirectory("torn");
  std::string path, two, three;
  {
    TensorBoardWriter writer(directory, 0);
    path = TensorBoardFiles(directory)[0];
    writer.Write(Step(1));
    writer.Write(Step(2));
    two = ReadWholeFile(path);
    writer.Write(Step(3));
    three = ReadWholeFile(path);
  }
  for (size_t cut = two.size() + 1; cut < three.size(); ++cut) {
    Put(path, three.substr(0, cut));
    TrimTensorBoard(directory, 3);
    ASSERT_EQ(ReadWholeFile(path), two) << cut;
    std::string flipped = three;
    flipped[cut] = static_cast<char>(flipped[cut] ^ 4);
    Put(path, flipped + two);
    TrimTensorBoard(directory, 3);
    ASSERT_EQ(ReadWholeFile(path), two) << cut;
  }
  Put(path, three + std::string(100, '\0'));
  TrimTensorBoard(directory, 3);
  EXPECT_EQ(ReadWholeFile(path), three);
  Put(path, "no event file");
  TrimTensorBoard(directory, 3);
  EXPECT_FALSE(fs::exists(path));
}

TEST(TensorBoard, FullDiskIsAClearErrorAndLeavesWholeRecords) {
  const std::string directory = FreshDirectory("full");
  TensorBoardWriter writer(directory, 0);
  writer.Write(Step(1));
  const std::string path = TensorBoardFiles(directory)[0];
  std::string error;
  {
    const FullDisk full(fs::file_size(path) + 20);
    try {
      writer.Write(Step(2));
    } catch (const CheckpointError& e) {
      error = e.what();
    }
  }
  EXPECT_EQ(error, path + ": cannot be written: File too large");
  EXPECT_EQ(ReadScalar(directory, "train/loss"), (Values{{1, 5}}));
  writer.Write(Step(2));
  writer.Sync();
  EXPECT_EQ(ReadScalar(directory, "train/loss"), (Values{{1, 5}, {2, 2.5f}}));
  EXPECT_THROW(TensorBoardWriter(directory + "/none", 0), CheckpointError);
}

}  // namespace
}  // namespace fsdp
