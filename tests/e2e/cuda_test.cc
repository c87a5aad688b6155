// The program as it is on a host with a GPU: linked with the emulator in place of CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

Outcome OnGpu(const Strings& arguments, const Variables& environment = {}) {
  const TempDir output;
  Process::Options options;
  options.environment = environment;
  options.output_directory = output.path();
  options.program = std::filesystem::absolute("tests/emulated/fsdp-train");
  return Process(arguments, options).Wait();
}

Strings WithText(const Job& job, const std::string& device, const Strings& more = {}) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the cat sat on mat " + std::to_string(i % 7) + ". ";
  Strings settings = {"run.device=" + device, "model.vocab_size=256",
                      "data.train={source: text, paths: [" + job.dir().Write("text.txt", text) +
                          "], tokenizer: bytes}",
                      "train.steps=6", "checkpoint={every: 3, keep_last: 0}"};
  settings.insert(settings.end(), more.begin(), more.end());
  return job.Flags(settings);
}

std::vector<double> LossesOf(const Job& job) {
  std::vector<double> losses;
  for (const Json& record : OfKind(ReadMetrics(job.run_dir()), "step")) {
    losses.push_back(record["loss"]);
  }
  return losses;
}

// To what ten roundings of fp32 in each of six steps may change.
void ExpectClose(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t s = 0; s < want.size(); ++s) EXPECT_NEAR(got[s], want[s], 1e-5 * want[s]) << s;
}

TEST(Cuda, TrainsEvaluatesTracesAndSays) {
  Job job;
  const Outcome run =
      OnGpu(WithText(job, "auto",
                     {"data.valid={fraction: 0.2}",
                      "eval={every: 3, steps: 1, sample: {prompt: the, max_tokens: 3}}",
                      "log.trace_steps=[2]", "log.every=1"}));
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(run.out.find("computes on GPU 0 of 1, "), std::string::npos) << run.Text();
  const std::vector<Json> records = ReadMetrics(job.run_dir());
  EXPECT_EQ(OfKind(records, "run")[0]["device"], "cuda");
  EXPECT_EQ(OfKind(records, "eval").size(), 2u);
  EXPECT_EQ(OfKind(records, "sample").size(), 2u);
  EXPECT_EQ(OfKind(records, "checkpoint").size(), 2u);
  EXPECT_TRUE(Exists(job.run_dir() + "/traces")) << run.Text();
}

// Which takes no memory of the GPU, and says what a run would.
TEST(Cuda, DryRunsArePlannedForIt) {
  Job job;
  Strings flags = WithText(job, "auto");
  flags.push_back("--dry-run");
  const Outcome run = OnGpu(flags);
  EXPECT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(run.out.find("memory of each of 1 ranks on cuda"), std::string::npos) << run.Text();
  EXPECT_FALSE(Exists(job.run_dir()));
}

// A checkpoint of either device goes on on the other one, and so do generated texts.
TEST(Cuda, CheckpointsGoBothWays) {
  Job cpu, gpu, there, back;
  const Strings log = {"log.every=1"};
  ASSERT_EQ(Call(WithText(cpu, "cpu", log)).code, 0);
  const Outcome run = OnGpu(WithText(gpu, "cuda", log));
  ASSERT_EQ(run.code, 0) << run.Text();
  ExpectClose(LossesOf(gpu), LossesOf(cpu));
  // The first half here, the second there.
  const auto in_two = [&](const Job& job, const std::string& first, const std::string& second) {
    Strings begin =
        WithText(job, first, {"log.every=1", "train.steps=3", "schedule.name=constant"});
    Strings end = WithText(job, second, {"log.every=1", "schedule.name=constant"});
    const Outcome one = OnGpu(begin), two = OnGpu(end);
    EXPECT_EQ(one.code, 0) << one.Text();
    EXPECT_EQ(two.code, 0) << two.Text();
    EXPECT_NE(two.out.find("resumed from"), std::string::npos) << two.Text();
    return LossesOf(job);
  };
  ExpectClose(in_two(there, "cpu", "cuda"), in_two(back, "cuda", "cpu"));

  const auto text = [&](const std::string& device) {
    return OnGpu({"generate", "--checkpoint", cpu.run_dir(), "--prompt", "the c", "--max-tokens",
                  "8", "--temperature", "0", "--json", "--device", device});
  };
  const Outcome here = text("cpu"), gpus = text("cuda");
  EXPECT_EQ(gpus.code, 0) << gpus.Text();
  EXPECT_EQ(gpus.out, here.out);
  EXPECT_NE(gpus.out.find("\"text\""), std::string::npos) << gpus.Text();
}

TEST(Cuda, RanksShareAGpuAndItsMemory) {
  Job job;
  Strings arguments = {"launch", "--nproc-per-node", "2", "--"};
  for (const std::string& flag : WithText(job, "cuda", {"log.every=1"})) arguments.push_back(flag);
  const Outcome run = OnGpu(arguments);
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(run.out.find("which 2 ranks of this host share"), std::string::npos) << run.Text();
  Job alone;
  ASSERT_EQ(Call(WithText(alone, "cpu", {"log.every=1"})).code, 0);
  ExpectClose(LossesOf(job), LossesOf(alone));
}

}  // namespace
}  // namespace fsdp::e2e
