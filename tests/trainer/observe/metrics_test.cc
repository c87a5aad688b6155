#include "trainer/observe/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/full_disk.h"
#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_prefix.h"

namespace fsdp {
namespace {

std::string FreshPath(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name + ".jsonl";
  std::filesystem::remove(path);
  return path;
}

void Put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

std::string Lines(const std::vector<MetricsRecord>& records) {
  std::string out;
  for (const MetricsRecord& record : records) out += ToJson(record) + "\n";
  return out;
}

StepRecord Step(int64_t step) { return {.step = step, .loss = 5.0 / static_cast<double>(step)}; }

TEST(MetricsRecord, LinesAreThoseOfTheInterface) {
  EXPECT_EQ(ToJson(RunRecord{.name = "quick \"start\"",
                             .version = "0.1.0",
                             .git = "unknown",
                             .started = "2026-01-02T03:04:05Z",
                             .device = "cpu",
                             .world_size = 2,
                             .threads = 1,
                             .seed = 1337,
                             .parameters = 830000,
                             .steps = 100}),
            R"({"kind": "run", "name": "quick \"start\"", "version": "0.1.0", "git": "unknown", )"
            R"("started": "2026-01-02T03:04:05Z", "device": "cpu", "world_size": 2, "threads": 1, )"
            R"("seed": 1337, "parameters": 830000, "steps": 100})");
  EXPECT_EQ(ToJson(ResumeRecord{.step = 20, .from = "runs/a/checkpoints/step_20"}),
            R"({"kind": "resume", "step": 20, "from": "runs/a/checkpoints/step_20"})");
  EXPECT_EQ(
      ToJson(ResumeRecord{.step = 20, .from = "c", .data_changed = {"a.txt: \"x\"", "b"}}),
      R"({"kind": "resume", "step": 20, "from": "c", "data_changed": ["a.txt: \"x\"", "b"]})");
  EXPECT_EQ(ToJson(ResumeRecord{.step = 2, .from = "c", .recipe_changed = {"a: 1 -> 2"}}),
            R"({"kind": "resume", "step": 2, "from": "c", "recipe_changed": ["a: 1 -> 2"]})");
  StepRecord step{.step = 3,
                  .loss = 2.25,
                  .loss_mean = 2.5,
                  .grad_norm = 0.1,
                  .lr = 3e-4,
                  .tokens = 24576,
                  .samples = 24,
                  .step_time_s = 0.5,
                  .tokens_per_s = 16384,
                  .targets_per_s = 12288,
                  .samples_per_s = 16,
                  .tflops_per_device = 0.0625,
                  .mfu = 0.41,
                  .memory = {1000, 2000, 3000, 400, 50, 4},
                  .time = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0},
                  .communication = {10, 20, 30, 40, 50}};
  EXPECT_EQ(
      ToJson(step),
      R"({"kind": "step", "step": 3, "loss": 2.25, "loss_mean": 2.5, )"
      R"("grad_norm": 0.1, "lr": 3e-04, )"
      R"("tokens": 24576, "samples": 24, "step_time_s": 0.5, "tokens_per_s": 16384.0, )"
      R"("targets_per_s": 12288.0, "samples_per_s": 16.0, )"
      R"("tflops_per_device": 0.0625, "mfu": 0.41, "memory": {"allocated_peak": 1000, )"
      R"("active_peak": 2000, "reserved_peak": 3000, "host": 400, "disk": 50, "alloc_retries": 4}, )"
      R"("time": {"data": 0.25, "forward": 0.5, )"
      R"("recompute": 0.75, "backward": 1.0, "optimizer": 1.25, "communication": 1.5, )"
      R"("offload": 1.75, "other": 2.0}, "communication": {"all_gather_bytes": 10, "reduce_scatter_bytes": 20, )"
      R"("all_reduce_bytes": 30, "all_to_all_bytes": 40, "network_bytes": 50}})");
  step.mfu.reset();
  step.loss = NAN;
  step.grad_norm = INFINITY;
  const auto read = testing::Json::parse(ToJson(step));
  EXPECT_TRUE(read["mfu"].is_null() && read["loss"].is_null() && read["grad_norm"].is_null());
  EXPECT_EQ(ToJson(EvalRecord{.step = 3, .loss = 1.5}),
            R"({"kind": "eval", "step": 3, "loss": 1.5, "perplexity": 4.4816890703380645})");
  EXPECT_EQ(ToJson(EvalRecord{.step = 3, .loss = 0, .name = "code"}),
            R"({"kind": "eval", "step": 3, "name": "code", "loss": 0.0, "perplexity": 1.0})");
  // e^710 is past the largest double.
  EXPECT_EQ(ToJson(EvalRecord{.step = 3, .loss = 710}),
            R"({"kind": "eval", "step": 3, "loss": 710.0, "perplexity": null})");
  EXPECT_EQ(ToJson(EvalRecord{.step = 3, .loss = NAN}),
            R"({"kind": "eval", "step": 3, "loss": null, "perplexity": null})");
  const auto with = [](const EvalMetric* metric, double mean) {
    return ToJson(EvalRecord{.step = 3, .loss = 0.5, .metric = metric, .mean = mean});
  };
  EXPECT_EQ(with(nullptr, 0), R"({"kind": "eval", "step": 3, "loss": 0.5})");
  EXPECT_EQ(with(&kAccuracy, 0.75),
            R"({"kind": "eval", "step": 3, "loss": 0.5, "accuracy": 0.75})");
  EXPECT_EQ(testing::Json::parse(with(&kNormalizedEntropy, 0.5))["normalized_entropy"],
            0.5 / std::log(2));
  EXPECT_EQ(with(&kNormalizedEntropy, 1),
            R"({"kind": "eval", "step": 3, "loss": 0.5, "normalized_entropy": null})");
  EXPECT_EQ(ToJson(SampleRecord{.step = 3, .prompt = "a: ", .text = "\"b\"\n\x1b\xff"}),
            "{\"kind\": \"sample\", \"step\": 3, \"prompt\": \"a: \", "
            "\"text\": \"\\\"b\\\"\\n\\u001b\uFFFD\"}");
  EXPECT_EQ(
      ToJson(CheckpointRecord{.step = 4, .path = "c/step_4", .seconds = 0.25, .bytes = 12}),
      R"({"kind": "checkpoint", "step": 4, "path": "c/step_4", "seconds": 0.25, "bytes": 12})");
  EXPECT_EQ(
      ToJson(PauseRecord{.step = 4, .evaluation = 0.5, .sampling = 0.25, .checkpoint = 2}),
      R"({"kind": "time", "step": 4, "evaluation": 0.5, "sampling": 0.25, "checkpoint": 2.0})");
  EXPECT_EQ(ToJson(SkippedRecord{.step = 5, .reason = "gradient not finite"}),
            R"({"kind": "skipped", "step": 5, "reason": "gradient not finite"})");
  EXPECT_EQ(ToJson(SpikeRecord{.step = 5, .what = "loss", .value = 2.5, .z = 7}),
            R"({"kind": "spike", "step": 5, "what": "loss", "value": 2.5, "z": 7.0})");
  EXPECT_EQ(ToJson(EndRecord{.reason = "done"}), R"({"kind": "end", "reason": "done"})");
}

TEST(MetricsWriter, AppendsLineByLineAndRefusesAnotherRunsFile) {
  const std::string path = FreshPath("create");
  {
    MetricsWriter writer = MetricsWriter::Create(path);
    writer.Write(Step(1));
    EXPECT_EQ(ReadWholeFile(path), Lines({Step(1)}));  // At once, not when it is closed.
    MetricsWriter moved = std::move(writer);
    moved.Write(EvalRecord{1, 2.0});
    moved.Sync();
  }
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1), EvalRecord{1, 2.0}}));
  try {
    MetricsWriter::Create(path);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()).find(path + ": exists: this directory holds a run"), 0u);
  }
  EXPECT_THROW(MetricsWriter::Create(::testing::TempDir() + "/none/m.jsonl"), CheckpointError);
  EXPECT_THROW(MetricsWriter::Resume(::testing::TempDir() + "/none/m.jsonl", 1), CheckpointError);
}

TEST(MetricsWriter, ResumeDropsWhatIsPastTheStep) {
  const RunRecord run{.name = "a"};
  const std::vector<MetricsRecord> kept = {run,
                                           Step(1),
                                           Step(2),
                                           EvalRecord{2, 1.0},
                                           Step(3),
                                           SkippedRecord{3, "x"},
                                           CheckpointRecord{.step = 3}};
  std::vector<MetricsRecord> old = kept;
  old.insert(old.end(), {Step(4), EvalRecord{4, 1.0}, EndRecord{"signal"}});
  const std::string path = FreshPath("resume");
  Put(path, Lines(old));
  MetricsKept count;
  std::vector<MetricsRecord> want = kept;
  {
    MetricsWriter writer = MetricsWriter::Resume(path, 3, &count);
    EXPECT_EQ(count.kept, 7);
    EXPECT_EQ(count.dropped, 3);
    EXPECT_EQ(count.damaged, 0);
    want.insert(want.end(), {run, ResumeRecord{3, "c"}, Step(4), Step(5)});
    writer.Write(run);
    writer.Write(ResumeRecord{3, "c"});
    writer.Write(Step(4));
    writer.Write(Step(5));
  }
  EXPECT_EQ(ReadWholeFile(path), Lines(want));
  // From an earlier step: the later start goes with the steps that it made.
  MetricsWriter::Resume(path, 2, &count);
  EXPECT_EQ(ReadWholeFile(path), Lines({run, Step(1), Step(2), EvalRecord{2, 1.0}}));
  EXPECT_EQ(count.dropped, 7);
  MetricsWriter::Resume(path, 0, &count);
  EXPECT_EQ(ReadWholeFile(path), Lines({run}));
}

// A checkpoint is recorded when it counts, which may be after later steps.
TEST(MetricsWriter, ResumeKeepsTheCheckpointsOfStepsItKeeps) {
  const std::string path = FreshPath("late");
  const MetricsRecord two = CheckpointRecord{2, "c/step_2", 1, 1};
  const MetricsRecord three = CheckpointRecord{3, "c/step_3", 1, 1};
  Put(path, Lines({Step(1), Step(2), Step(3), two, EvalRecord{3, 1}, Step(4), three}));
  MetricsKept count;
  MetricsWriter::Resume(path, 2, &count);
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1), Step(2), two}));
  EXPECT_EQ(count.kept, 3);
  EXPECT_EQ(count.dropped, 4);
  MetricsWriter::Resume(path, 1, &count);
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1)}));
}

TEST(MetricsWriter, ResumeGoesOnBehindAnEndAndWithoutAFile) {
  const std::string path = FreshPath("end");
  Put(path, Lines({Step(1), EndRecord{"done"}}));
  MetricsWriter::Resume(path, 1).Write(Step(2));
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1), Step(2)}));
  const std::string fresh = FreshPath("fresh");
  MetricsWriter::Resume(fresh, 7).Write(Step(8));
  EXPECT_EQ(ReadWholeFile(fresh), Lines({Step(8)}));
}

// kill -9 in the middle of a line, at each of its bytes.
TEST(MetricsWriter, HalfWrittenLastLineIsDropped) {
  const std::string whole = Lines({Step(1), Step(2)}), last = Lines({Step(3)});
  const std::string path = FreshPath("torn");
  for (size_t cut = 1; cut < last.size(); ++cut) {
    Put(path, whole + last.substr(0, cut));
    MetricsKept count;
    MetricsWriter::Resume(path, 3, &count).Write(Step(3));
    ASSERT_EQ(count.damaged, 1) << cut;
    ASSERT_EQ(ReadWholeFile(path), whole + last) << cut;
  }
  // A power cut may leave zeros, or lines of anything.
  Put(path, whole + std::string(100, '\0') + "\n[1]\n{\"step\": 3}\n\n" + last);
  MetricsKept count;
  MetricsWriter::Resume(path, 3, &count);
  EXPECT_EQ(count.kept, 3);
  EXPECT_EQ(count.damaged, 3);
  EXPECT_EQ(count.zeros, 100);
  EXPECT_EQ(DescribeDamage(count), "3 damaged lines and 100 bytes of zeros, the first at line 3");
  EXPECT_EQ(ReadWholeFile(path), whole + last);
}

// A power cut leaves this on some file systems, wherever in the file: the records on both sides of
// it are kept, those in it are not made up, and it is said.
TEST(MetricsWriter, ABlockOfZerosIsDropped) {
  const std::string path = FreshPath("zeros");
  const std::string lines = Lines({Step(1), Step(2), Step(3)});
  const size_t second = lines.find('\n') + 1, third = lines.find('\n', second) + 1;
  for (size_t begin = 0; begin < lines.size(); begin += 1 + begin % 41) {
    for (const size_t size : {size_t{1}, size_t{40}, lines.size()}) {
      const size_t end = std::min(begin + size, lines.size());
      std::string cut = lines;
      std::fill(cut.begin() + static_cast<std::ptrdiff_t>(begin),
                cut.begin() + static_cast<std::ptrdiff_t>(end), '\0');
      // The run went on behind it: its line begins in the middle of one.
      Put(path, cut + Lines({Step(4)}));
      MetricsKept count;
      MetricsWriter::Resume(path, 4, &count).Write(Step(5));
      std::string want;
      const auto keep = [&](size_t from, size_t to) {  // With or without its line's end.
        if (end <= from || begin >= to - 1) want += lines.substr(from, to - from);
      };
      keep(0, second);
      keep(second, third);
      keep(third, lines.size());
      want += Lines({Step(4), Step(5)});
      ASSERT_EQ(ReadWholeFile(path), want) << begin << " " << end;
      ASSERT_EQ(count.zeros, static_cast<int64_t>(end - begin));
      ASSERT_NE(DescribeDamage(count).find(" bytes of zeros, the first at line "),
                std::string::npos);
    }
  }
  for (const size_t begin : {second - 1, second}) {  // A line's end, and what is behind it.
    std::string cut = lines;
    cut[begin] = '\0';
    Put(path, cut);
    MetricsWriter::Resume(path, 4);
    ASSERT_EQ(ReadWholeFile(path), begin < second ? lines : Lines({Step(1), Step(3)}));
  }
  MetricsKept clean;
  MetricsWriter::Resume(path, 5, &clean);
  EXPECT_EQ(DescribeDamage(clean), "");
}

// A checkpoint is told the bytes of the file and their hash, however the file came about.
TEST(MetricsWriter, SyncKnowsAllThatIsInTheFile) {
  const std::string path = FreshPath("knows");
  const auto whole = [&] {
    PrefixHash hash;
    hash.Update(ReadWholeFile(path));
    return hash.Taken();
  };
  {
    MetricsWriter writer = MetricsWriter::Create(path);
    EXPECT_EQ(writer.Sync(), PrefixHash().Taken());
    for (int64_t step = 1; step <= 4; ++step) writer.Write(Step(step));
    const FilePrefix at = writer.Sync();
    EXPECT_EQ(at, whole());
    writer.Write(Step(5));
    EXPECT_EQ(HowItDiffers(path, at), "");
    writer.Write(EndRecord{"done"});
    EXPECT_EQ(writer.Sync(), whole());
  }
  MetricsWriter writer = MetricsWriter::Resume(path, 3);
  EXPECT_EQ(writer.Sync(), whole());
  writer.Write(Step(4));
  EXPECT_EQ(writer.Sync(), whole());
}

TEST(MetricsWriter, FullDiskIsAClearErrorAndLeavesWholeLines) {
  const std::string path = FreshPath("full");
  MetricsWriter writer = MetricsWriter::Create(path);
  writer.Write(Step(1));
  std::string error;
  {
    const FullDisk full(ToJson(Step(1)).size() + 20);
    try {
      writer.Write(Step(2));
    } catch (const CheckpointError& e) {
      error = e.what();
    }
  }
  EXPECT_EQ(error, path + ": cannot be written: File too large");
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1)}));
  writer.Write(Step(2));  // Room again.
  EXPECT_EQ(ReadWholeFile(path), Lines({Step(1), Step(2)}));
}

}  // namespace
}  // namespace fsdp
