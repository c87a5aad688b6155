// Before the first step ranks agree on what they are about to do, and where: the one that differs,
// and what in, is named on all of them.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

struct Rank {
  Strings settings = {};  // And the job's recipe, or another one.
  Variables variables = {};
  std::string directory = "";  // To work in.
  std::string program = "";
  std::string recipe = "";
};

// Three ranks, of which 2 is another one than the others: all must end with `code` and a line that
// has `message`.
void ExpectRefused(const Job& job, const Rank& usual, const Rank& other, int code,
                   const std::string& message) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int r = 0; r < 3; ++r) {
    const Rank& rank = r == 2 ? other : usual;
    Variables variables = Torchrun(r, 3, port);
    variables.insert(rank.variables.begin(), rank.variables.end());
    Strings flags = job.Flags(rank.settings);
    if (!rank.recipe.empty()) flags[1] = rank.recipe;
    ranks.push_back(std::make_unique<Process>(
        flags, Process::Options{variables, rank.directory, job.dir().path(), rank.program}));
  }
  for (const auto& rank : ranks) {
    const Outcome outcome = rank->Wait();
    EXPECT_EQ(outcome.code, code) << outcome.Text();
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(Agreement, OnTheRecipe) {
  Job job;
  ExpectRefused(job, {}, {{"optimizer.lr=2.0e-2"}}, 2,
                "ranks disagree at the start: recipe: optimizer.lr is \"0.02\" on rank 2, \"0.01\" "
                "on rank 0");
  // Nobody waits for what only some would do: all find out where they are.
  ExpectRefused(
      job, {}, {{"fsdp.sharding_strategy=hybrid_shard"}}, 2,
      "ranks disagree at the start: recipe: fsdp.sharding_strategy is \"hybrid_shard\" on rank 2, "
      "\"full_shard\" on rank 0");
  EXPECT_FALSE(Exists(job.run_dir()));
}

// The same names on every host, but not the same files behind them.
TEST(Agreement, OnTheData) {
  Job job;
  for (const char* host : {"a", "b"}) {
    std::filesystem::create_directory(job.dir() / host);
    job.dir().Write(std::string(host) + "/text.txt", std::string(3000, host[0]));
  }
  const Strings text = {"data={train: {source: text, paths: [text.txt]}, valid: null, seq_len: 16}",
                        "model.vocab_size=256"};
  ExpectRefused(job, {text, {}, job.dir() / "a"}, {text, {}, job.dir() / "b"}, 2,
                "ranks disagree at the start: data is ");
}

// The same path on every host, but not the same model there.
TEST(Agreement, OnTheShape) {
  Job job;
  const std::string fixtures = std::filesystem::absolute("tests/fixtures/gpt2");
  for (const auto& [host, model] : {std::pair("a", "odd_vocab"), std::pair("b", "odd_heads")}) {
    std::filesystem::create_directory(job.dir() / host);
    std::filesystem::create_directory_symlink(fixtures + "/" + model,
                                              job.dir() / host + std::string("/model"));
  }
  const std::string recipe =
      job.dir().Write("imported.yaml",
                      "run: {threads: 1}\n"
                      "model: {family: gpt2, init_from: model}\n"
                      "data: {train: {source: synthetic}, valid: null,\n"
                      "       seq_len: 4}\n"
                      "train: {micro_batch_size: 1, global_batch_size: 3}\n");
  ExpectRefused(job, {{}, {}, job.dir() / "a", "", recipe}, {{}, {}, job.dir() / "b", "", recipe},
                2,
                "ranks disagree at the start: recipe: model.hidden_size is \"30\" on rank 2, "
                "\"48\" on rank 0");
}

// The same program but for the name of the commit that it was built from.
TEST(Agreement, OnTheBuild) {
  Job job;
  const std::string version = Call({"--version"}).out;  // "fsdp-train 0.1.0 (HASH, gcc 12.2.0)".
  const size_t begin = version.find('(') + 1;
  const std::string hash = version.substr(begin, version.find(',') - begin);
  ASSERT_GE(hash.size(), 7u) << version;
  std::string binary = ReadFile(BinaryPath());
  int changed = 0;
  for (size_t at = 0; (at = binary.find(hash, at)) != std::string::npos; ++at, ++changed) {
    binary[at] = hash[0] == 'a' ? 'b' : 'a';
  }
  ASSERT_GE(changed, 1);
  const std::string path = job.dir().Write("fsdp-train", binary);
  chmod(path.c_str(), 0755);
  ExpectRefused(job, {}, {{}, {}, "", path}, 2, "ranks disagree at the start: build is \"0.1.0 ");
}

// Ranks on processors of different kinds, whose kernels round differently.
TEST(Agreement, OnTheKernels) {
  Job job;
  const Strings bf16 = {"fsdp.mixed_precision={param_dtype: bf16}"};
  ExpectRefused(
      job, {bf16, {{"FSDP_TRAIN_ISA", "avx2"}}},
      {bf16, {{"FSDP_TRAIN_ISA", "amx_emulated_on_avx2"}}}, 2,
      "ranks disagree at the start: kernels is \"amx with avx2\" on rank 2, \"avx2\" on rank 0");
  if (!__builtin_cpu_supports("avx512f")) {
    GTEST_SKIP() << "this processor has no AVX-512: there are two sets of kernels to run";
  }
  ExpectRefused(job, {}, {{}, {{"FSDP_TRAIN_ISA", "avx2"}}}, 2,
                "ranks disagree at the start: kernels is \"avx2\" on rank 2, \"avx512\" on rank 0");
}

// Tiles multiply bf16 alone: ranks with and without them train together in fp32.
TEST(Agreement, OnKernelsThatAreUsed) {
  Job job;
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int r = 0; r < 2; ++r) {
    Variables variables = Torchrun(r, 2, port);
    variables["FSDP_TRAIN_ISA"] = r == 0 ? "avx2" : "amx_emulated_on_avx2";
    ranks.push_back(std::make_unique<Process>(job.Flags({}), Process::Options{variables, "", ""}));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->Wait().code, 0);
}

// A kind that the processor lacks is told once, before any rank starts.
TEST(Agreement, KernelsThatThereAreNotEndTheLaunch) {
  Job job;
  Strings flags = {"launch", "--nproc-per-node", "2", "--"};
  for (const std::string& flag : job.Flags({})) flags.push_back(flag);
  const Outcome outcome = Call(flags, {{"FSDP_TRAIN_ISA", "avx1024"}});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err.find("FSDP_TRAIN_ISA is \"avx1024\", which this processor does not have: "
                             "it has avx2"),
            0u)
      << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST(RunDirectory, ThatIsNotSharedIsNamedOnAllRanks) {
  Job job;
  const std::string elsewhere = job.dir() / "elsewhere";
  ExpectRefused(job, {}, {{"run.dir=" + elsewhere}}, 5,
                ": not a shared directory: rank 0's files do not appear in that of rank 2 on ");
  EXPECT_FALSE(Exists(elsewhere));
}

}  // namespace
}  // namespace fsdp::e2e
