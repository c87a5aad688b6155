// What a run gives to look at: TensorBoard's files.
#include <gtest/gtest.h>

#include "tests/e2e/run_binary.h"
#include "tests/trainer/observe/event_reader.h"

namespace fsdp::e2e {
namespace {

// Each record of metrics.jsonl is there once, whatever was stopped and resumed.
void ExpectTheMetrics(const std::string& run_dir) {
  std::vector<std::pair<int64_t, float>> losses, rates, evals;
  for (const Json& record : ReadMetrics(run_dir)) {
    const auto value = [&](const char* key) {
      return std::pair(record["step"].get<int64_t>(),
                       static_cast<float>(record[key].get<double>()));
    };
    if (record["kind"] == "step") {
      losses.push_back(value("loss"));
      rates.push_back(value("lr"));
    }
    if (record["kind"] == "eval") evals.push_back(value("loss"));
  }
  EXPECT_FALSE(losses.empty() || evals.empty());
  EXPECT_EQ(ReadScalar(run_dir, "train/loss"), losses);
  EXPECT_EQ(ReadScalar(run_dir, "train/lr"), rates);
  EXPECT_EQ(ReadScalar(run_dir, "eval/loss"), evals);
}

std::vector<std::string> EventFiles(const Job& job) {
  std::vector<std::string> paths;
  for (const std::string& name : job.dir().List()) {
    if (name.find("tfevents") != std::string::npos) paths.push_back(job.dir() / name);
  }
  return paths;
}

TEST(TensorBoard, ReadsAsOneRunHoweverOftenItWasResumed) {
  Job job;
  const Strings settings = {
      "eval={every: 2, steps: 2, sample: {prompt: 'a', max_tokens: 3}}",
      "data.train.paths=[" + job.dir().Write("text", std::string(3000, 'a')) + "]",
      "data.train.source=text",
      "model.vocab_size=256",
      "data.valid={fraction: 0.2}",
      "checkpoint={every: 4, keep_last: 0}"};
  const auto train = [&](const Strings& more) {
    Strings all = settings;
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = job.Train(all);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
  };
  train({});
  ExpectTheMetrics(job.run_dir());
  std::map<std::string, std::vector<int64_t>> texts;  // Steps by tag.
  ASSERT_EQ(EventFiles(job).size(), 1u);
  for (const TensorBoardEvent& event : ReadEvents(EventFiles(job)[0])) {
    for (const auto& [tag, text] : event.texts) texts[tag].push_back(event.step);
    if (event.texts.count("recipe") > 0) {
      EXPECT_NE(event.texts.at("recipe").find("\n    model:\n"), std::string::npos);
    }
  }
  EXPECT_EQ(texts, (std::map<std::string, std::vector<int64_t>>{{"recipe", {0}},
                                                                {"sample", {2, 4, 6, 8, 10}}}));
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "sample").size(), 5u);

  train({"checkpoint.resume=4", "train.steps=12"});
  ExpectTheMetrics(job.run_dir());
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss").size(), 12u);
  EXPECT_EQ(EventFiles(job).size(), 2u);

  // Without it nothing is written, and what is no longer true goes.
  train({"checkpoint.resume=8", "train.steps=12", "log.tensorboard=false"});
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss").size(), 8u);
  EXPECT_EQ(EventFiles(job).size(), 2u);
}

TEST(TensorBoard, StartingOverSetsTheOldFilesAside) {
  Job job;
  ASSERT_EQ(job.Train().code, 0);
  const auto first = ReadScalar(job.run_dir(), "train/loss");
  EXPECT_EQ(first.size(), 10u);
  ASSERT_EQ(job.Train().code, 0);
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss"), first);
  EXPECT_EQ(ReadScalar(job.run_dir() + "/metrics.1.tensorboard", "train/loss"), first);
}

}  // namespace
}  // namespace fsdp::e2e
