// Planned bytes = bytes in use, measured from outside the trainer's own accounts: a library that is
// preloaded into every rank (alloc_probe.cc) counts its large allocations and its resident peak.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

// The probe's report of one rank.
struct Report {
  int64_t after = 0;           // Calls of 64 KiB or more from step 1 to the end of training.
  std::vector<int64_t> sizes;  // Sizes of the calls before those.
  int64_t peak = 0;            // Bytes resident.
  bool watched = false;        // The probe saw the training begin and end.
  std::string text;
};

std::vector<Report> ReadReports(const TempDir& dir, const std::string& stem) {
  std::vector<Report> reports;
  for (const std::string& name : dir.List()) {
    if (!name.starts_with(stem + ".")) continue;
    Report report;
    report.text = ReadFile(dir / name);
    std::istringstream in(report.text);
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string word, function;
      int64_t bytes = 0;
      fields >> word;
      if (word == "peak") fields >> report.peak;
      if (word == "before" && fields >> function >> bytes) report.sizes.push_back(bytes);
      report.after += word == "after";
      report.watched |= line == "last end";
    }
    if (report.peak > 0) reports.push_back(report);
  }
  return reports;
}

struct Case {
  const char* name;
  int world;
  Strings settings;
  int resume_at = 0;  // Steps that another process has done.
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class MemoryTest : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryTest, NothingIsAllocatedAfterStepOneAndThePlanHolds) {
  const Case& c = GetParam();
  Job job;
  // 3.3 million parameters, nearly all in the embedding, so the plan is what counts in the peak.
  Strings settings = {"model.vocab_size=50257", "model.hidden_size=64", "train.steps=12",
                      "train.global_batch_size=6"};
  settings.insert(settings.end(), c.settings.begin(), c.settings.end());
  if (c.resume_at > 0) {  // Under the probe runs only what comes after this step.
    Strings begin = settings;
    begin.push_back("train.steps=" + std::to_string(c.resume_at));
    const Outcome begun = job.Launch(c.world, begin);
    ASSERT_EQ(begun.code, 0) << begun.Text();
  }
  const Variables probe = {{"LD_PRELOAD", std::filesystem::absolute("tests/e2e/alloc_probe.so")},
                           {"ALLOC_PROBE_METRICS", job.run_dir() + "/metrics.jsonl"},
                           {"ALLOC_PROBE_STEP", std::to_string(c.resume_at + 1)},
                           {"ALLOC_PROBE_REPORT", job.dir() / "probe"}};
  const Outcome outcome =
      job.Start(c.world == 1 ? job.Flags(settings) : job.LaunchArguments(c.world, settings), probe)
          .Wait();
  ASSERT_EQ(outcome.code, 0) << outcome.Text();

  Strings arguments = {"plan", "--json", "--world-size", std::to_string(c.world)};
  for (const std::string& flag : job.Flags(settings)) arguments.push_back(flag);
  const Outcome planned = Call(arguments);
  ASSERT_EQ(planned.code, 0) << planned.Text();
  const Json memory = Json::parse(planned.out)["memory"];
  const auto bytes = memory["reserved_peak"].get<int64_t>();
  const auto host = memory["host"].get<int64_t>();  // Part of `bytes`: staging, saves.
  const auto outside = memory["outside"].get<int64_t>();
  ASSERT_GT(bytes, int64_t{20} << 20);

  int ranks = 0;
  for (const Report& report : ReadReports(job.dir(), "probe")) {
    const auto has = [&](int64_t size) {
      return std::find(report.sizes.begin(), report.sizes.end(), size) != report.sizes.end();
    };
    if (c.world > 1 && !has(bytes - host)) continue;  // Launch itself.
    ++ranks;
    for (const int64_t arena : {bytes - host, host}) {
      EXPECT_TRUE(has(arena)) << "no arena of " << arena << " bytes:\n" << report.text;
    }
    EXPECT_TRUE(report.watched) << report.text;
    EXPECT_EQ(report.after, 0) << report.text;
    EXPECT_LE(report.peak, bytes + outside);
    // The probe sees: a plan that is far too large would hold anything.
    EXPECT_GT(report.peak, bytes / 2);
  }
  EXPECT_EQ(ranks, c.world);
}

// Evaluations and samples on some text. The vocabulary is far larger than bytes need.
Strings OnText(const Strings& more = {}) {
  Strings settings = {"data.train={source: text, paths: [tests/e2e/memory_test.cc]}",
                      "data.valid={fraction: 0.5}",
                      "eval={every: 4, steps: 2, sample: {prompt: 'a', max_tokens: 20}}"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Runs, MemoryTest,
    ::testing::Values(
        Case{"one_rank", 1, {}}, Case{"two_ranks", 2, {}},
        Case{"three_ranks_recompute", 3, {"train.activation_checkpointing=full"}},
        Case{"no_shard", 2, {"fsdp.sharding_strategy=no_shard", "fsdp.communicators=1"}},
        Case{"hybrid", 4, {"fsdp={sharding_strategy: hybrid_shard, shard_size: 2}"}},
        Case{"kept_parts", 4, {"fsdp.reshard_after_forward=2", "train.micro_batch_size=1"}},
        Case{"bf16", 2, {"fsdp.mixed_precision.param_dtype=bf16", "run.threads=2"}},
        Case{"bf16_llama_averaged", 1,
             OnText({"train.ema={decay: 0.9}", "eval.ema=true", "model.family=llama",
                     "fsdp.mixed_precision={param_dtype: bf16, keep_fp32: ['*norm*']}"})},
        Case{"math", 2, {"train.attention=math", "model.attention_dropout=0.1"}},
        Case{"two_threads", 1, {"run.threads=2", "train.micro_batch_size=6"}},
        Case{"evaluation", 2, OnText({"train.ema={decay: 0.9}", "eval.ema=true"})},
        Case{"checkpoints", 2, OnText({"checkpoint={every: 3, keep_last: 1}"})},
        Case{"checkpoints_waited_for", 2, OnText({"checkpoint={every: 3, async: false}"})},
        Case{"resumed", 3, OnText({"checkpoint.every=6"}), 6}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::e2e
