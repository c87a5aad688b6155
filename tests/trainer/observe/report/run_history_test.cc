#include "trainer/observe/report/run_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "tests/trainer/observe/report/run_directory_files.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

double SecondsOf(const RunHistory& run, std::string_view part) {
  for (size_t i = 0; i < kRunParts.size(); ++i) {
    if (kRunParts[i] == part) return run.seconds[i];
  }
  throw std::out_of_range(std::string(part));
}

std::string ErrorOf(const std::string& directory) {
  try {
    ReadRun(directory, 20);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST(ReadRun, HoldsWhatTheRecordsSay) {
  const std::string directory = FreshDirectory("whole");
  Put(directory + "/metrics.jsonl",
      Lines({RunOf("a", 9), Step(2), EvalRecord{2, 3.5}, EvalRecord{2, 2.5, "code"},
             SampleRecord{2, "p", "text"}, PauseRecord{2, 0.5, 0.25, 0}, Step(4),
             CheckpointRecord{4, "c/step_4", 9, 10}, PauseRecord{4, 0, 0, 1.5},
             EndRecord{"stopped"}, RunOf("a", 6), ResumeRecord{4, "c/step_4"}, Step(6),
             EndRecord{"done"}}));
  Put(directory + "/recipe.yaml",
      "run: {name: a}\noptimizer:\n  lr: 3e-4\n  betas: [0.9, 0.95]\ndata:\n  train:\n    - "
      "paths: [x, 'y z']\n    - weight: 2\n  valid: null\n");
  Put(directory + "/provenance.json",
      R"({"command_line": ["a", "b c"], "host": {"cores": 2}, "data": [{"path": "x"}]})");
  Put(directory + "/traces/step_5.json", R"({"traceEvents": [
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "compute"}},
    {"ph": "X", "name": "linear", "pid": 0, "tid": 1, "ts": 0.0, "dur": 500000.0}]})");
  const RunHistory run = ReadRun(directory, 20);
  EXPECT_EQ(run.name, "a");
  EXPECT_EQ(run.steps, 6);
  EXPECT_EQ(run.records, 14);
  EXPECT_EQ(run.broken, 0);
  EXPECT_FALSE(run.unfinished);
  EXPECT_EQ(run.end, "done");
  EXPECT_EQ(run.last_step, 6);
  EXPECT_EQ(run.tokens, 600);
  EXPECT_EQ(run.loss.Extremes(),
            (std::vector<Point>{{2, Step(2).loss_mean}, {4, 3}, {6, Step(6).loss_mean}}));
  EXPECT_EQ(run.mfu.last().y, 0.5);
  EXPECT_EQ(run.reserved.last().y, 3 << 20);
  EXPECT_EQ(run.evals.at("").Extremes(), (std::vector<Point>{{2, 3.5}}));
  EXPECT_EQ(run.evals.at("code").Extremes(), (std::vector<Point>{{2, 2.5}}));
  // Each step record stands for two steps of half a second.
  EXPECT_EQ(run.step_seconds, 3);
  EXPECT_EQ(run.step_tokens, 600);
  EXPECT_EQ(run.tokens_so_far.Extremes(), (std::vector<Point>{{2, 200}, {4, 400}, {6, 600}}));
  // The pauses behind a step lie before the next.
  EXPECT_EQ(run.seconds_so_far.Extremes(), (std::vector<Point>{{2, 1}, {4, 2.75}, {6, 5.25}}));
  EXPECT_TRUE(run.has_parts);
  EXPECT_EQ(SecondsOf(run, "forward"), 6 * 0.125);
  EXPECT_EQ(SecondsOf(run, "backward"), 6 * 0.25);
  EXPECT_EQ(SecondsOf(run, "communication"), 6 * 0.0625);
  EXPECT_EQ(SecondsOf(run, "offload"), 6 * 0.03125);
  double parts = 0;  // All that the records have: nothing of a step is left out.
  for (size_t i = 0; i < kStepParts; ++i) parts += run.seconds[i];
  EXPECT_EQ(parts, run.step_seconds);
  EXPECT_EQ(SecondsOf(run, "evaluation"), 0.5);
  EXPECT_EQ(SecondsOf(run, "sampling"), 0.25);
  EXPECT_EQ(SecondsOf(run, "checkpoint"), 1.5);
  ASSERT_EQ(run.starts.size(), 2u);
  EXPECT_EQ(run.starts[0].resumed_from, "");
  EXPECT_EQ(run.starts[1].resumed_from, "c/step_4");
  EXPECT_EQ(run.starts[1].world_size, 2);
  ASSERT_EQ(run.samples.size(), 1u);
  EXPECT_EQ(run.samples[0].prompt + run.samples[0].text, "ptext");
  EXPECT_EQ(run.recipe, (FlatText{{"run.name", "a"},
                                  {"optimizer.lr", "3e-4"},
                                  {"optimizer.betas", "[0.9, 0.95]"},
                                  {"data.train[0].paths", "[x, y z]"},
                                  {"data.train[1].weight", "2"},
                                  {"data.valid", "null"}}));
  EXPECT_EQ(run.provenance,
            (FlatText{{"command_line", "a b c"}, {"host.cores", "2"}, {"data[0].path", "x"}}));
  EXPECT_TRUE(run.notes.empty());
  ASSERT_TRUE(run.traced);
  EXPECT_EQ(run.traced->operations[0].name, "linear");
}

TEST(ReadRun, MissingDirectoriesSayWhatToGive) {
  const std::string directory = FreshDirectory("missing");
  EXPECT_EQ(ErrorOf(directory + "/none"),
            directory + "/none: no such directory; give a run directory, such as runs/<run.name>");
  Put(directory + "/file", "");
  EXPECT_EQ(ErrorOf(directory + "/file").find(directory + "/file: not a directory; "), 0u);
  EXPECT_EQ(ErrorOf(directory), directory +
                                    ": holds no metrics.jsonl, so no run has begun here; give a "
                                    "run directory, such as runs/<run.name>");
  Put(directory + "/b/metrics.jsonl", "");
  Put(directory + "/a/metrics.jsonl", "");
  EXPECT_NE(ErrorOf(directory).find("; it holds 2 run directories: " + directory + "/a, " +
                                    directory + "/b"),
            std::string::npos);
}

TEST(ReadRun, AnEmptyRunIsARun) {
  const std::string directory = FreshDirectory("empty");
  Put(directory + "/metrics.jsonl", "");
  const RunHistory run = ReadRun(directory, 20);
  EXPECT_EQ(run.name, "empty");
  EXPECT_EQ(run.records, 0);
  EXPECT_FALSE(run.end);
  EXPECT_EQ(run.notes.size(), 2u);  // No recipe, no provenance.
  EXPECT_FALSE(run.traced);
}

TEST(ReadRun, BrokenLinesAreCountedAndLeftOut) {
  const std::string directory = FreshDirectory("broken");
  const std::string good = Lines({Step(1)});
  Put(directory + "/metrics.jsonl",
      good + "\n{\n[1]\n3\nnull\n{\"kind\": 1}\n{}\n" + std::string(100, '\0') + "\n\xff\xfe\n" +
          R"({"kind": "step", "step": "2"})" + "\n" + R"({"kind": "step", "step": 2.5})" + "\n" +
          R"({"kind": "step", "step": -1})" + "\n" + R"({"kind": "step", "step": 9e30})" + "\n" +
          R"({"kind": "step", "step": 18446744073709551615})" + "\n" +
          R"({"kind": "step", "step": 2, "loss": "x"})" + "\n" +
          R"({"kind": "step", "step": 2, "memory": 3})" + "\n" + R"({"kind": "eval"})" + "\n" +
          std::string(3 << 20, 'x') + "\n" + Lines({Step(3)}) +
          R"({"kind": "of a later version"})" + "\n" + R"({"kind": "step", "st)");
  const RunHistory run = ReadRun(directory, 20);
  EXPECT_EQ(run.broken, 18);
  EXPECT_TRUE(run.unfinished);
  EXPECT_EQ(run.records, 3);
  EXPECT_EQ(run.loss.count(), 2);
  EXPECT_FALSE(run.end);
}

TEST(ReadRun, WhatIsNotFiniteIsAnIncident) {
  const std::string directory = FreshDirectory("nan");
  StepRecord bad = Step(2);
  bad.loss = bad.loss_mean = NAN;
  bad.grad_norm = INFINITY;
  Put(directory + "/metrics.jsonl",
      Lines({Step(1), bad, SkippedRecord{2, "loss or gradient not finite"},
             EndRecord{"not finite"}}));
  const RunHistory run = ReadRun(directory, 20);
  EXPECT_EQ(run.loss.count(), 1);
  ASSERT_EQ(run.num_incidents, 3);
  EXPECT_EQ(run.incidents[0].what, "loss not finite");
  EXPECT_EQ(run.incidents[2].what, "skipped: loss or gradient not finite");
  EXPECT_EQ(run.end, "not finite");
}

TEST(ReadRun, ASpikeIsAnIncident) {
  const std::string directory = FreshDirectory("spike");
  Put(directory + "/metrics.jsonl", Lines({Step(1), SpikeRecord{1, "loss", 12.34567, 6.25}}));
  const RunHistory run = ReadRun(directory, 20);
  ASSERT_EQ(run.num_incidents, 1);
  EXPECT_EQ(run.incidents[0].step, 1);
  EXPECT_EQ(run.incidents[0].what, "loss 12.35 is 6.25 deviations above its last steps");
}

TEST(ReadRun, KeepsTheFirstAndTheLastSamples) {
  const std::string directory = FreshDirectory("samples");
  std::string lines;
  for (int64_t i = 1; i <= 50; ++i) {
    lines += Lines({SampleRecord{i, "", std::string(20000, 'x')}, RunOf("a", 1)});
  }
  Put(directory + "/metrics.jsonl", lines);
  const RunHistory run = ReadRun(directory, 20);
  EXPECT_EQ(run.num_samples, 50);
  ASSERT_EQ(run.samples.size(), 8u);
  EXPECT_EQ(run.samples[0].step, 1);
  EXPECT_EQ(run.samples[1].step, 44);
  EXPECT_EQ(run.samples[7].step, 50);
  EXPECT_EQ(run.samples[7].text.size(), 8u << 10);
  EXPECT_EQ(run.num_starts, 50);
}

TEST(ReadRun, OtherFilesThatAreNoneAreNotes) {
  const std::string directory = FreshDirectory("notes");
  Put(directory + "/metrics.jsonl", Lines({Step(1)}));
  Put(directory + "/recipe.yaml", "a: [\n");
  Put(directory + "/provenance.json", "{");
  Put(directory + "/traces/step_1.json", "{}");
  Put(directory + "/traces/step_2.json", R"({"traceEvents": [{"ph": "X"}]})");
  const RunHistory run = ReadRun(directory, 20);
  ASSERT_EQ(run.notes.size(), 4u);
  EXPECT_EQ(run.notes[0].find("recipe.yaml could not be read: "), 0u);
  EXPECT_EQ(run.notes[1].find("provenance.json could not be read: "), 0u);
  EXPECT_EQ(run.notes[2].find("traces/step_1.json is left out: "), 0u);
  EXPECT_FALSE(run.traced);
  EXPECT_THROW(FlattenYaml(std::string(2000, '[') + std::string(2000, ']')), std::exception);
  EXPECT_THROW(FlattenJson(std::string(2000, '[') + std::string(2000, ']')), std::exception);
}

}  // namespace
}  // namespace fsdp
