// The program as it is on a host with a GPU: linked with the emulator in place of CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr int64_t kCodeBytes = int64_t{512} << 20;  // Held back for code of kernels.

Outcome OnGpu(const Strings& arguments, const Variables& environment = {}) {
  static const auto* const cache = new TempDir;
  const TempDir output;
  Process::Options options;
  options.environment = environment;
  options.environment.emplace("XDG_CACHE_HOME", cache->path());
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

// A kernel of the fourth step of WithText()'s run.
constexpr int kFault = 740;

// Equal but for ten roundings of fp32 in each of six steps.
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
  EXPECT_NE(run.out.find("memory of the rank on cuda"), std::string::npos) << run.Text();
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
  // The first half here, the second there, a table frozen: that is copied to the host once.
  const auto in_two = [&](const Job& job, const std::string& first, const std::string& second) {
    const Strings both = {"log.every=1", "schedule.name=constant", "checkpoint.every=1",
                          "optimizer.groups=[{match: '*wpe*', frozen: true}]"};
    Strings begin = WithText(job, first, both), end = WithText(job, second, both);
    begin.insert(begin.end(), {"--set", "train.steps=3"});
    const Outcome one = OnGpu(begin), two = OnGpu(end);
    EXPECT_EQ(one.code, 0) << one.Text();
    EXPECT_EQ(two.code, 0) << two.Text();
    EXPECT_NE(two.out.find("resumed from"), std::string::npos) << two.Text();
    return LossesOf(job);
  };
  ExpectClose(in_two(there, "cpu", "cuda"), in_two(back, "cuda", "cpu"));

  const auto text = [&](const Job& job, const std::string& device) {
    return OnGpu({"generate", "--checkpoint", job.run_dir(), "--prompt", "the c", "--max-tokens",
                  "8", "--temperature", "0", "--json", "--device", device});
  };
  EXPECT_EQ(text(there, "cpu").out, text(back, "cpu").out);
  const Outcome here = text(cpu, "cpu"), gpus = text(cpu, "cuda");
  EXPECT_EQ(gpus.code, 0) << gpus.Text();
  EXPECT_EQ(gpus.out, here.out);
  EXPECT_NE(gpus.out.find("\"text\""), std::string::npos) << gpus.Text();
}

// State in host memory is saved from there, and the run goes on with all of it on a GPU.
TEST(Cuda, OffloadsAndGoesOnWithout) {
  Job cpu, gpu;
  const Strings common = {"log.every=1",
                          "checkpoint.every=1",
                          "schedule.name=constant",
                          "train.ema={decay: 0.9}",
                          "data.valid={fraction: 0.2}",
                          "eval={every: 2, steps: 1, ema: true}"};
  const auto with = [&](const Job& job, const char* device, Strings more) {
    more.insert(more.end(), common.begin(), common.end());
    return WithText(job, device, more);
  };
  ASSERT_EQ(Call(with(cpu, "cpu", {})).code, 0);
  Strings first = with(gpu, "cuda",
                       {"fsdp.cpu_offload={optimizer: true, params: true, optimizer_share: 0.25}"});
  first.insert(first.end(), {"--set", "train.steps=2"});
  Strings second = with(gpu, "cuda", {"fsdp.cpu_offload={optimizer: true, optimizer_share: 0.5}"});
  second.insert(second.end(), {"--set", "train.steps=4"});
  for (const Strings& part : {first, second, with(gpu, "cuda", {})}) {
    const Outcome run = OnGpu(part);
    ASSERT_EQ(run.code, 0) << run.Text();
  }
  ExpectClose(LossesOf(gpu), LossesOf(cpu));
  const auto evaluations = [](const Job& job) {
    std::vector<double> losses;
    for (const Json& record : OfKind(ReadMetrics(job.run_dir()), "eval")) {
      losses.push_back(record["loss"]);
    }
    return losses;
  };
  ExpectClose(evaluations(gpu), evaluations(cpu));
}

// 2 million parameters in 6 MiB beside the library's workspace of 32 MiB, and 6 that the fakes take
// of the GPU: units stream through the GPU, and
// the ratio is that of 13 billion in 16 GiB, as plan_test has it.
TEST(Cuda, TrainsWhatItsMemoryDoesNotHold) {
  Job job;
  const Strings deep = {"model.num_hidden_layers=40",
                        "model.hidden_size=64",
                        "model.intermediate_size=256",
                        "data.seq_len=16",
                        "fsdp.mixed_precision.param_dtype=bf16",
                        "train={steps: 2, micro_batch_size: 1, global_batch_size: 2, "
                        "activation_checkpointing: full}"};
  const Variables machine = {
      {"FSDP_TRAIN_EMULATED_GPUS", "bytes=" + std::to_string((44 << 20) + kCodeBytes)}};
  const Outcome all = OnGpu(WithText(job, "cuda", deep), machine);
  EXPECT_EQ(all.code, 3) << all.Text();
  EXPECT_NE(all.err.find("it fits with fsdp.cpu_offload.optimizer: true"), std::string::npos)
      << all.Text();
  Strings streamed = deep;
  streamed.insert(streamed.end(),
                  {"fsdp.cpu_offload={optimizer: true, params: true}", "log.every=1"});
  const Outcome run = OnGpu(WithText(job, "cuda", streamed), machine);
  ASSERT_EQ(run.code, 0) << run.Text();
  const Json memory = OfKind(ReadMetrics(job.run_dir()), "step").back()["memory"];
  const double device = memory["allocated_peak"].get<double>() - (32 << 20);
  EXPECT_LT(device, 16.0 / 218 * memory["host"].get<double>());
}

TEST(Cuda, RanksShareAGpuAndItsMemory) {
  Job job;
  Strings arguments = {"launch", "--nproc-per-node", "2", "--"};
  for (const std::string& flag : WithText(job, "cuda", {"log.every=1"})) arguments.push_back(flag);
  const Outcome run = OnGpu(arguments, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(
      run.out.find("which 2 ranks of this host share; CUDA_DEVICE_MAX_CONNECTIONS=1 is raised "
                   "to 32"),
      std::string::npos)
      << run.Text();
  Job alone;
  ASSERT_EQ(Call(WithText(alone, "cpu", {"log.every=1"})).code, 0);
  ExpectClose(LossesOf(job), LossesOf(alone));
}

// WithText()'s run by so many ranks of an emulated machine.
Outcome Launch(const Job& job, int ranks, const std::string& machine, const Strings& more,
               bool may_share = false) {
  Strings arguments = {"launch", "--nproc-per-node", std::to_string(ranks), "--"};
  Strings settings = {"log.every=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  for (const std::string& flag : WithText(job, "cuda", settings)) arguments.push_back(flag);
  return OnGpu(arguments, {{"FSDP_TRAIN_EMULATED_GPUS", machine},
                           {"NCCL_MULTI_RANK_GPU_ENABLE", may_share ? "1" : "0"}});
}

// Over the host's memory where they share one; with run.deterministic the same bits.
TEST(Cuda, RanksWithAGpuEachUseNccl) {
  struct Case {
    int ranks;
    Strings settings;
    std::string blocks = "1";  // A quarter of the emulated GPU's multiprocessors.
  };
  for (const Case& c :
       std::vector<Case>{{2, {}},
                         {2,
                          {"fsdp={mixed_precision: {param_dtype: bf16, reduce_dtype: bf16}, "
                           "collective_blocks: 2}"},
                          "2"},
                         {4, {"fsdp={sharding_strategy: hybrid_shard, shard_size: 2}"}}}) {
    SCOPED_TRACE(c.ranks);
    Job shared, deterministic, native;
    // Both: without it the library's GELU is of what was not rounded.
    Strings settings = c.settings;
    settings.push_back("run.deterministic=true");
    const Outcome pinned = Launch(shared, c.ranks, "count=1", settings);
    ASSERT_EQ(pinned.code, 0) << pinned.Text();
    EXPECT_NE(pinned.out.find("ranks share a GPU, which NCCL refuses"), std::string::npos)
        << pinned.Text();
    const std::string own = "count=" + std::to_string(c.ranks);
    const Outcome fast = Launch(native, c.ranks, own, c.settings);
    ASSERT_EQ(fast.code, 0) << fast.Text();
    EXPECT_NE(fast.out.find("collectives over NCCL 2.28.9"), std::string::npos) << fast.Text();
    EXPECT_NE(fast.out.find("at most " + c.blocks + " of 4 multiprocessors"), std::string::npos)
        << fast.Text();
    const bool unread = pinned.out.find("has no collectives of NCCL") != std::string::npos;
    EXPECT_EQ(unread, c.blocks == "2") << pinned.Text();
    const Outcome exact = Launch(deterministic, c.ranks, own, settings);
    ASSERT_EQ(exact.code, 0) << exact.Text();
    EXPECT_EQ(LossesOf(deterministic), LossesOf(shared));
    EXPECT_EQ(LossesOf(native).size(), LossesOf(shared).size());
  }
}

// In bf16 by NCCL, as in FSDP2, or in fp32: one recipe's two sums, which are not the same.
TEST(Cuda, GradientsOf16BitsAreSummedAsTheRecipeSays) {
  std::map<std::string, std::vector<double>> losses;
  for (const auto& [sum, said] : std::map<std::string, std::string>{
           {"null", "collectives over NCCL 2.28.9; it adds up gradients in bf16"},
           {"exact", "; gradients are added up in fp32, in the order of the ranks"}}) {
    Job job;
    const Outcome run = Launch(job, 2, "count=2",
                               {"fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: bf16, "
                                "sum: " +
                                sum + "}"});
    ASSERT_EQ(run.code, 0) << run.Text();
    EXPECT_NE(run.out.find(said), std::string::npos) << run.Text();
    losses[sum] = LossesOf(job);
  }
  EXPECT_NE(losses["null"], losses["exact"]);
  for (size_t s = 0; s < losses["null"].size(); ++s) {
    EXPECT_NEAR(losses["null"][s], losses["exact"][s], 0.01 * losses["exact"][s]) << s;
  }
}

TEST(Cuda, ProductsKeepAMultiprocessor) {
  Job none;
  const Outcome all = Launch(none, 2, "count=2", {"fsdp.collective_blocks=4"});
  EXPECT_EQ(all.code, 2) << all.Text();
  EXPECT_NE(all.err.find("4, and a GPU here has 4 multiprocessors"), std::string::npos)
      << all.Text();
}

// NCCL's half of the program, on a machine with one GPU; hosts may be named apart, too.
TEST(Cuda, TwoRanksOfOneGpuMayUseNccl) {
  Job shared, apart;
  const Outcome pinned = Launch(shared, 2, "count=1 nccl=22809", {"run.deterministic=true"}, true);
  EXPECT_EQ(pinned.code, 0) << pinned.Text();
  EXPECT_NE(pinned.out.find("which NCCL refuses"), std::string::npos) << pinned.Text();
  const Outcome nccl = Launch(apart, 2, "count=1 nccl=23003", {"run.deterministic=true"}, true);
  EXPECT_EQ(nccl.code, 0) << nccl.Text();
  EXPECT_NE(nccl.out.find("collectives over NCCL 2.30.3, with two ranks on a GPU"),
            std::string::npos)
      << nccl.Text();
  EXPECT_EQ(LossesOf(apart), LossesOf(shared));
}

// Before a run takes memory or touches the disk; alone, and on a GPU that ranks share, it is not
// looked for.
TEST(Cuda, NcclThatCannotBeUsed) {
  for (const auto& [version, why] : std::map<std::string, std::string>{
           {"0", "libnccl.so.2 is not there"}, {"22703", "is version 2.27.3"}}) {
    Job job;
    const Outcome run = Launch(job, 2, "count=2 nccl=" + version, {});
    EXPECT_EQ(run.code, 1) << run.Text();
    for (const std::string& word :
         {why, std::string("need NCCL, 2.28.0 or newer"), std::string("looked in this program"),
          std::string("FSDP_TRAIN_CUDA_LIBS")}) {
      EXPECT_NE(run.Text().find(word), std::string::npos) << word << "\n" << run.Text();
    }
    EXPECT_FALSE(Exists(job.run_dir() + "/metrics.jsonl")) << run.Text();
    EXPECT_EQ(Launch(job, 1, "count=1 nccl=" + version, {}).code, 0);
    job.RunDir("shared");
    EXPECT_EQ(Launch(job, 2, "count=1 nccl=" + version, {}).code, 0);
  }
}

// Each rank says where it stood.
TEST(Cuda, ACollectiveThatFailsOrHangsEndsTheRun) {
  Job job;
  const Outcome failed = Launch(job, 2, "count=2 nccl_fails=10", {});
  EXPECT_EQ(failed.code, 6) << failed.Text();
  // The next call says it where the host enqueues one before it asks for the communicator's error.
  for (const char* word : {"rank 1: ", ": unhandled system error", "a cable is loose", ", in ",
                           "rank 0 stood at ", "rank 1 stood at "}) {
    EXPECT_NE(failed.Text().find(word), std::string::npos) << word << "\n" << failed.Text();
  }
  job.RunDir("hangs");
  const Outcome late = Launch(job, 2, "count=2 nccl_hangs=10", {"run.timeout_s=3"});
  EXPECT_EQ(late.code, 6) << late.Text();
  for (const char* word : {" timed out after 3 s", "rank 0 stood at ", "rank 1 stood at "}) {
    EXPECT_NE(late.Text().find(word), std::string::npos) << word << "\n" << late.Text();
  }
}

// Every op of a step, in bf16 by kernels for GPUs, and what there is to compute with.
TEST(Cuda, IsListedAndMeasured) {
  Strings ops = {"bench",   "ops", "--device",  "cuda", "--dtype",        "bf16", "--batch", "1",
                 "--seq",   "8",   "--hidden",  "16",   "--intermediate", "24",   "--heads", "2",
                 "--vocab", "40",  "--seconds", "0",    "--json"};
  const Outcome bench = OnGpu(ops);
  ASSERT_EQ(bench.code, 0) << bench.Text();
  const Json measured = Json::parse(bench.out);
  EXPECT_EQ(measured["attention"], "cuDNN 9.19.0");
  EXPECT_EQ(measured["device"], "Emulated GPU");
  EXPECT_EQ(measured["dtype"], "bf16");
  EXPECT_GT(measured["ops"].size(), 30u);
  for (const Json& op : measured["ops"]) EXPECT_GT(op["seconds"], 0) << op;
  // Each of the two asks the emulated cuDNN for plans, or none is made.
  for (const auto& [machine, flag, attention] :
       std::vector<std::tuple<const char*, const char*, const char*>>{
           {"cudnn=0", "--json", "own kernels (no cuDNN: libcudnn.so.9 is not there"},
           {"cudnn_plans=0", "--own-kernels", "own kernels"},
           {"cudnn_plans=4", "--json", "cuDNN 9.19.0"}}) {
    Strings some = ops;
    some.insert(some.end(), {"--only", "attention, forward"});
    if (std::string(flag) != "--json") some.push_back(flag);
    const Outcome other = OnGpu(some, {{"FSDP_TRAIN_EMULATED_GPUS", machine}});
    if (std::string(machine) == "cudnn_plans=4") {  // Two to find it, the third is the op's own.
      EXPECT_EQ(other.code, 1) << other.Text();
      EXPECT_NE(other.err.find("too many plans"), std::string::npos) << other.Text();
      continue;
    }
    ASSERT_EQ(other.code, 0) << other.Text();
    const Json said = Json::parse(other.out);
    EXPECT_EQ(said["attention"].get<std::string>().find(attention), 0u) << other.Text();
    EXPECT_EQ(said["ops"].size(), 1u);
  }

  Job job;
  Strings gemm = {"bench", "gemm", "--device", "cuda", "--rounds", "1", "--json"};
  for (const std::string& flag : WithText(job, "cuda")) gemm.push_back(flag);
  const Outcome products = OnGpu(gemm);
  ASSERT_EQ(products.code, 0) << products.Text();
  const Json timed = Json::parse(products.out);
  EXPECT_GT(timed["parts"].size(), 8u);
  for (const Json& part : timed["parts"]) EXPECT_GT(part["seconds"], 0) << part;
  EXPECT_EQ(timed["products"], "cuBLASLt 13.1.0");
  gemm.push_back("--own-kernels");
  const Outcome own = OnGpu(gemm, {{"FSDP_TRAIN_EMULATED_GPUS", "cublaslt=0"}});
  ASSERT_EQ(own.code, 0) << own.Text();
  EXPECT_EQ(Json::parse(own.out)["products"], "own");

  const Variables two_gpus = {{"FSDP_TRAIN_EMULATED_GPUS", "count=2"}};
  for (const char* transport : {"thread", "shm", "nccl"}) {
    const Strings flags = {"bench",   "comm",      "--device", "cuda",  "--transport", transport,
                           "--ranks", "2",         "--dtype",  "bf16",  "--sizes",     "64",
                           "4k",      "--batches", "1",        "--json"};
    const bool nccl = std::string(transport) == "nccl";
    const Outcome comm = OnGpu(flags, nccl ? two_gpus : Variables());
    ASSERT_EQ(comm.code, 0) << comm.Text();
    const Json collectives = Json::parse(comm.out);
    EXPECT_EQ(collectives["device"], "Emulated GPU");
    EXPECT_EQ(collectives["collectives"].size(), 10u);
    for (const Json& one : collectives["collectives"]) EXPECT_GT(one["seconds"], 0) << one;
    if (!nccl) continue;
    const Outcome shared = OnGpu(flags);
    EXPECT_EQ(shared.code, 2) << shared.Text();
    EXPECT_NE(shared.err.find("NCCL wants a GPU for each of 2 ranks"), std::string::npos)
        << shared.Text();
  }

  const Outcome devices = OnGpu({"devices"});
  EXPECT_EQ(devices.code, 0) << devices.Text();
  for (const char* word : {"cpu ", "cuda  0: Emulated GPU, capability 9.0, ", "driver for 13.0",
                           "libcublasLt.so.13: ", "libnccl.so.2: ", "libcudnn.so.9: "}) {
    EXPECT_NE(devices.out.find(word), std::string::npos) << word << "\n" << devices.Text();
  }
}

// Attention is cuDNN's where there is one and rows are what it is for; a line says which. The same
// losses to rounding, from run to run the same bits.
TEST(Cuda, TakesAttentionFromCudnn) {
  const Strings bf16 = {"log.every=1", "fsdp.mixed_precision.param_dtype=bf16"};
  struct Case {
    const char* machine;
    Strings settings;
    std::string line;
  };
  const std::string own = "attention: own kernels (";
  std::vector<double> first;
  for (const Case& c : std::vector<Case>{
           {"cudnn=0", {}, own + "no cuDNN: libcudnn.so.9 is not there"},
           {"cudnn=91900", {}, "attention: cuDNN 9.19.0\n"},
           {"cudnn=91900", {"run.deterministic=true"}, "attention: cuDNN 9.19.0\n"},
           {"cudnn=91001",
            {},
            own + "no cuDNN: emulated libcudnn.so.9 is version 9.10.1, and this "},
           {"cudnn=91002", {}, "attention: cuDNN 9.10.2, backward by own kernels (cuDNN before "},
           {"cudnn=91501", {}, "attention: cuDNN 9.15.1\n"},
           {"cudnn=91900", {"model.attention_dropout=0.1"}, own + "model.attention_dropout)\n"},
           {"cudnn=91900",
            {"fsdp.mixed_precision.param_dtype=fp32"},
            own + "cuDNN is for bf16 and fp16, "}}) {
    SCOPED_TRACE(std::string(c.machine) + " " + (c.settings.empty() ? "" : c.settings[0]));
    Job job;
    Strings settings = bf16;
    settings.insert(settings.end(), c.settings.begin(), c.settings.end());
    const Outcome run =
        OnGpu(WithText(job, "cuda", settings), {{"FSDP_TRAIN_EMULATED_GPUS", c.machine}});
    ASSERT_EQ(run.code, 0) << run.Text();
    EXPECT_NE(run.out.find(c.line), std::string::npos) << run.Text();
    const std::vector<double> losses = LossesOf(job);
    if (first.empty()) first = losses;
    ASSERT_EQ(losses.size(), first.size());
    // bf16 has 8 bits; dropout may change more.
    const double tolerance = c.settings.empty() || c.settings[0].starts_with("run.") ? 3e-3 : 0.1;
    for (size_t s = 0; s < first.size(); ++s)
      EXPECT_NEAR(losses[s], first[s], tolerance * first[s]);
  }
}

// Convolutions are cuDNN's where there is one; a line says which. The same losses to rounding, from
// run to run the same bits. Every plan is made before the first step.
TEST(Cuda, TakesConvolutionsFromCudnn) {
  const std::string recipe =
      "run: {device: cuda, threads: 1}\n"
      "model: {family: regnet, image_size: 12, num_labels: 10, embedding_size: 16,\n"
      "        hidden_sizes: [32], depths: [2], groups_width: 16}\n"
      "data: {train: {source: synthetic}, valid: {source: synthetic}}\n"
      "train: {steps: 3, micro_batch_size: 2, global_batch_size: 4}\n"
      "eval: {every: 3, steps: 1}\n"
      "fsdp: {mixed_precision: {param_dtype: bf16}}\n"
      "optimizer: {name: sgd, lr: 0.01}\n"
      "log: {every: 1}\n";
  const std::string own = "convolutions: own kernels (";
  std::vector<double> by_cudnn, first;
  for (const auto& [machine, line] : std::vector<std::pair<std::string, std::string>>{
           {"cudnn=91900 cudnn_late_plans=0", "convolutions: cuDNN 9.19.0\n"},
           {"cudnn=91900", "convolutions: cuDNN 9.19.0\n"},
           {"cudnn=0", own + "no cuDNN: libcudnn.so.9 is not there"},
           {"cudnn_plans=0", own + "cuDNN: convolution of 2 x 3 x 3 x 32 by 3 x 3 to 32, "}}) {
    SCOPED_TRACE(machine);
    const Job job(recipe);
    const Outcome run = OnGpu(job.Flags(), {{"FSDP_TRAIN_EMULATED_GPUS", machine}});
    ASSERT_EQ(run.code, 0) << run.Text();
    EXPECT_NE(run.out.find(line), std::string::npos) << run.Text();
    const std::vector<double> losses = LossesOf(job);
    ASSERT_EQ(losses.size(), 3u);
    if (first.empty()) first = losses;
    for (size_t s = 0; s < first.size(); ++s) EXPECT_NEAR(losses[s], first[s], 0.05) << s;
    if (line.starts_with(own)) continue;
    if (by_cudnn.empty()) by_cudnn = losses;
    EXPECT_EQ(losses, by_cudnn);
  }
}

// Recomputation uses the same kernels: no bit depends on it, but for the library's GELU of
// unrounded input, which a deterministic run does without.
TEST(Cuda, RecomputesAttentionByCudnn) {
  std::vector<double> first;
  for (const char* recompute : {"none", "selective", "full"}) {
    Job job;
    const Outcome run = OnGpu(
        WithText(job, "cuda",
                 {"log.every=1", "fsdp.mixed_precision.param_dtype=bf16", "run.deterministic=true",
                  std::string("train.activation_checkpointing=") + recompute}),
        {{"FSDP_TRAIN_EMULATED_GPUS", "cudnn=91900"}});
    ASSERT_EQ(run.code, 0) << run.Text();
    const std::vector<double> losses = LossesOf(job);
    if (first.empty()) first = losses;
    EXPECT_EQ(losses, first) << recompute;
  }
}

// For steps, and for a sample, which is one row.
TEST(Cuda, AllPlansOfCudnnsAreMadeBefore) {
  Job job;
  const Strings settings = {"fsdp.mixed_precision.param_dtype=bf16", "data.valid={fraction: 0.2}",
                            "eval={every: 3, steps: 1, sample: {prompt: the, max_tokens: 3}}"};
  const Outcome run =
      OnGpu(WithText(job, "cuda", settings), {{"FSDP_TRAIN_EMULATED_GPUS", "cudnn_late_plans=0"}});
  EXPECT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(run.out.find("attention: cuDNN 9.19.0\n"), std::string::npos) << run.Text();
}

// And so are NCCL's connections for the largest unit, for which it has another algorithm here.
TEST(Cuda, LargestCollectivesAreTriedBefore) {
  for (const char* strategy : {"full_shard", "no_shard"}) {
    Job job;
    const Strings settings = {"fsdp.mixed_precision.param_dtype=bf16",
                              std::string("fsdp.sharding_strategy=") + strategy};
    const Outcome run =
        Launch(job, 2, "count=2 nccl_middle=4000 nccl_late_connections=0", settings);
    EXPECT_EQ(run.code, 0) << run.Text();
  }
}

// Matrices go to their owners and back by calls of two kinds of size here; Adafactor's sums are of
// the larger kind.
TEST(Cuda, WhatOptimizersSendIsTriedBefore) {
  for (const char* optimizer : {"{name: muon, muon: {row_beta2: 0.9}}", "{name: adafactor}"}) {
    Job job;
    const Outcome run =
        Launch(job, 2, "count=2 nccl_middle=4000 nccl_late_connections=0",
               {"fsdp.mixed_precision.param_dtype=bf16", std::string("optimizer=") + optimizer});
    EXPECT_EQ(run.code, 0) << run.Text();
  }
}

// Libraries take their memory before the run compares its plan with the free memory: the emulator's
// cuBLASLt has 2 MiB, a handle of cuDNN's 4, and NCCL's communicator 1 and 2 for each kind of
// collective: one of gathers, and one of gradients and scalars. Where sums are ours that has 32.
// Each has 512 bytes of its own, which begin a page: CUDA is asked for 4,352.
TEST(Cuda, LibrariesHaveTheirMemoryBeforeTheRun) {
  constexpr int64_t kMiB = 1 << 20;
  struct Case {
    int ranks;
    Strings settings;
    int64_t known, libraries;
  };
  for (const Case& c : std::vector<Case>{
           {1, {}, 0, 2 * kMiB},
           {1, {"fsdp.mixed_precision.param_dtype=bf16"}, 0, 6 * kMiB},
           {2, {}, 0, (2 + 3 + 5) * kMiB + 2 * 4352},
           {2,
            {"fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: bf16, sum: exact}"},
            32 * kMiB,
            (6 + 3 + 5) * kMiB + 2 * 4352}}) {
    SCOPED_TRACE(std::to_string(c.ranks) + (c.settings.empty() ? "" : c.settings[0]));
    Job job;
    Strings flags = WithText(job, "cuda", c.settings);
    flags.insert(flags.begin(), "plan");
    const Strings more = {"--world-size", std::to_string(c.ranks), "--json"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Outcome plan = OnGpu(flags);
    ASSERT_EQ(plan.code, 0) << plan.Text();
    const auto planned = Json::parse(plan.out)["memory"]["allocated_peak"].get<int64_t>();
    const auto with = [&](int64_t bytes) {
      return Launch(job, c.ranks,
                    "count=" + std::to_string(c.ranks) + " bytes=" + std::to_string(bytes),
                    c.settings);
    };
    const int64_t all = planned + c.known + c.libraries + kCodeBytes;
    const Outcome little = with(all - 1);
    EXPECT_EQ(little.code, 3) << little.Text();
    EXPECT_NE(little.err.find(" does not fit: a rank needs "), std::string::npos) << little.Text();
    EXPECT_NE(little.err.find(", less 512 MiB for the code of kernels"), std::string::npos)
        << little.Text();
    // Nor has any rank tried.
    EXPECT_EQ(little.err.find("cannot allocate"), std::string::npos) << little.Text();
    EXPECT_FALSE(Exists(job.run_dir() + "/checkpoints/step-000003")) << little.Text();
    const Outcome enough = with(all);
    EXPECT_EQ(enough.code, 0) << enough.Text();
  }
}

// CUDA loads a kernel when it is first launched, beside what the run has taken.
TEST(Cuda, KernelsHaveRoomForTheirCode) {
  Job job;
  Strings flags = WithText(job, "cuda");
  flags.insert(flags.begin(), "plan");
  flags.insert(flags.end(), {"--world-size", "1", "--json"});
  const Outcome plan = OnGpu(flags);
  ASSERT_EQ(plan.code, 0) << plan.Text();
  const auto planned = Json::parse(plan.out)["memory"]["allocated_peak"].get<int64_t>();
  // Kernels that are loaded before the run's memory is taken leave less free: 4 MiB for some.
  const int64_t bytes = planned + kCodeBytes + (int64_t{100} << 20);
  const Outcome run =
      OnGpu(WithText(job, "cuda"),
            {{"FSDP_TRAIN_EMULATED_GPUS", "code=4194304 bytes=" + std::to_string(bytes)}});
  EXPECT_EQ(run.code, 0) << run.Text();
  const int64_t less = planned + (int64_t{100} << 20);
  const Outcome refused =
      OnGpu(WithText(job, "cuda"),
            {{"FSDP_TRAIN_EMULATED_GPUS", "code=4194304 bytes=" + std::to_string(less)}});
  EXPECT_EQ(refused.code, 3) << refused.Text();
}

// A product that the library refuses when it is called is said once, with the reason.
TEST(Cuda, SaysWhichProductsAreRefused) {
  Job timed, job;
  ASSERT_EQ(OnGpu(WithText(timed, "cuda")).code, 0);  // So that nothing is timed below.
  const Outcome run =
      OnGpu(WithText(job, "cuda"), {{"FSDP_TRAIN_EMULATED_GPUS", "cublaslt_refuses=3"}});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_NE(run.Text().find("cuBLASLt refuses the product "), std::string::npos) << run.Text();
  const Json refused =
      Json::parse(ReadFile(job.run_dir() + "/provenance.json"))["refused_products"];
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_NE(refused[0].get<std::string>().find("not supported when it was called"),
            std::string::npos)
      << refused;
  ExpectClose(LossesOf(job), LossesOf(timed));
}

// A GPU that cannot be used, or has too little memory: one error with its cure, before anything is
// on disk. It never falls back to the CPU.
TEST(Cuda, SaysWhyNot) {
  Job timed;  // Leaves timings, which the cases below then need not take before they allocate.
  ASSERT_EQ(OnGpu(WithText(timed, "cuda")).code, 0);
  struct Case {
    const char *machine, *visible;
    int code;
    Strings words;
  };
  for (const Case& c : std::vector<Case>{
           {"driver=0", nullptr, 1, {"no GPU: there is no NVIDIA driver on this host"}},
           {"driver=12040", nullptr, 1, {"CUDA up to 12.4", "needs 13.0", "newer driver"}},
           {"count=0", "", 1, {"the driver shows no GPU (CUDA_VISIBLE_DEVICES=)"}},
           {"count=0", nullptr, 1, {"the driver shows no GPU (CUDA_VISIBLE_DEVICES is not set)"}},
           {"capability=75", nullptr, 1, {"has compute capability 7.5", "needs 8.0 or more"}},
           {"bytes=200000",
            nullptr,
            3,
            {" of device memory, and ", " are free (", "libraries and other programs have ",
             "makes it fit"}},
           {"cudaMalloc=1", nullptr, 3, {"cannot allocate ", " bytes are free; a rank needs "}}}) {
    SCOPED_TRACE(c.machine);
    Job job;
    Variables environment = {{"FSDP_TRAIN_EMULATED_GPUS", c.machine}};
    if (c.visible != nullptr) environment["CUDA_VISIBLE_DEVICES"] = c.visible;
    const Outcome run = OnGpu(WithText(job, "cuda"), environment);
    EXPECT_EQ(run.code, c.code) << run.Text();
    for (const std::string& word : c.words) {
      EXPECT_NE(run.err.find(word), std::string::npos) << word << "\n" << run.Text();
    }
    EXPECT_FALSE(Exists(job.run_dir() + "/metrics.jsonl")) << run.Text();
    const Outcome devices = OnGpu({"devices"}, environment);
    EXPECT_EQ(devices.code, 0) << devices.Text();
    if (c.code == 3) continue;
    EXPECT_NE(devices.out.find("cuda  none: "), std::string::npos) << devices.Text();
    const Outcome anyway = OnGpu(WithText(job, "auto"), environment);
    EXPECT_EQ(anyway.code, 0) << anyway.Text();
    EXPECT_NE(anyway.out.find("computes on the CPU: "), std::string::npos) << anyway.Text();
  }
}

// One line, one place, one cure, before there is a directory; and never another device.
TEST(Cuda, NeedsItsLibraryOfProducts) {
  for (const auto& [version, word] : std::vector<std::pair<std::string, std::string>>{
           {"0", "libcublasLt.so.13 is not there (looked in "},
           {"120500", " is version 12.5.0, and this program needs 13.0.0 or newer (looked in "}}) {
    for (const char* device : {"cuda", "auto"}) {
      Job job;
      const Outcome run =
          OnGpu(WithText(job, device), {{"FSDP_TRAIN_EMULATED_GPUS", "cublaslt=" + version}});
      EXPECT_EQ(run.code, 1) << run.Text();
      for (const std::string& part : {std::string("a GPU's products need cuBLASLt: "), word,
                                      std::string("FSDP_TRAIN_CUDA_LIBS adds directories")}) {
        EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.Text();
      }
      EXPECT_FALSE(Exists(job.run_dir())) << run.Text();
    }
  }
}

// Algorithms are timed once: the next run finds them, and a file that is none is made anew. Where
// there is no memory to time them in, the library chooses.
TEST(Cuda, ProductsAreTimedOnce) {
  const TempDir cache;
  const Variables environment = {{"XDG_CACHE_HOME", cache.path()}};
  const auto said = [&](const Variables& variables) {
    Job job;
    const Outcome run = OnGpu(WithText(job, "cuda"), variables);
    EXPECT_EQ(run.code, 0) << run.Text();
    const size_t at = run.out.find("products by cuBLASLt 13.1.0 (");
    return at == std::string::npos ? run.Text() : run.out.substr(at, run.out.find('\n', at) - at);
  };
  Variables small = environment;
  small["FSDP_TRAIN_EMULATED_GPUS"] = "cudaMalloc=1";
  EXPECT_NE(said(small).find("the library's own choice for "), std::string::npos);
  EXPECT_NE(said(environment).find(" shapes timed in "), std::string::npos);
  EXPECT_NE(said(environment).find(" shapes as they were timed before"), std::string::npos);
  const std::string file = cache.path() + "/fsdp-train/products/Emulated_GPU-cuBLASLt_13.1.0.json";
  ASSERT_TRUE(Exists(file));
  const std::string damaged = ReadFile(file).substr(0, 200);
  std::ofstream(file) << damaged;
  EXPECT_NE(said(environment).find(" shapes timed in "), std::string::npos);
  // Another version's are its own.
  Variables newer = environment;
  newer["FSDP_TRAIN_EMULATED_GPUS"] = "cublaslt=130200";
  Job job;
  const Outcome run = OnGpu(WithText(job, "cuda"), newer);
  EXPECT_NE(run.out.find(" shapes timed in "), std::string::npos) << run.Text();
  EXPECT_TRUE(Exists(cache.path() + "/fsdp-train/products/Emulated_GPU-cuBLASLt_13.2.0.json"));
}

// A run that is to repeat its bits goes on with the algorithms of its checkpoint, wherever it is,
// or not at all.
TEST(Cuda, DeterministicRunsKeepTheirAlgorithms) {
  const Strings settings = {"log.every=1", "run.deterministic=true", "checkpoint.async=false",
                            "schedule.name=constant"};
  Job whole, job;
  ASSERT_EQ(OnGpu(WithText(whole, "cuda", settings)).code, 0);
  const Strings rest = WithText(job, "cuda", settings);
  Strings half = rest;
  half.insert(half.end(), {"--set", "train.steps=3"});
  ASSERT_EQ(OnGpu(half).code, 0);
  const Outcome other = OnGpu(rest, {{"FSDP_TRAIN_EMULATED_GPUS", "cublaslt=130200"}});
  EXPECT_EQ(other.code, 2) << other.Text();
  for (const char* word :
       {"run.deterministic: ", "was computed by cuBLASLt 13.1.0 on Emulated GPU",
        "here are cuBLASLt 13.2.0 and Emulated GPU", "run.deterministic=false"}) {
    EXPECT_NE(other.err.find(word), std::string::npos) << word << "\n" << other.Text();
  }
  const TempDir elsewhere;
  const Outcome here = OnGpu(rest, {{"XDG_CACHE_HOME", elsewhere.path()}});
  EXPECT_EQ(here.code, 0) << here.Text();
  EXPECT_NE(here.out.find(" shapes as they were timed before"), std::string::npos) << here.Text();
  EXPECT_EQ(LossesOf(job), LossesOf(whole));
}

// In a step behind the first checkpoint: the operation and the step are named, nothing is saved any
// more, and what was saved goes on to the numbers of a run without a fault.
TEST(Cuda, AFaultEndsTheRun) {
  Job job, whole;
  // No save is in the air when it comes.
  const Strings log = {"log.every=1", "checkpoint.async=false"};
  ASSERT_EQ(OnGpu(WithText(whole, "cuda", log)).code, 0);
  for (const bool synchronous : {false, true}) {
    Variables environment = {{"FSDP_TRAIN_EMULATED_GPUS", "fault=" + std::to_string(kFault)}};
    if (synchronous) environment["FSDP_TRAIN_CUDA_SYNC"] = "1";
    job.RunDir(synchronous ? "one_by_one" : "behind");
    const Outcome run = OnGpu(WithText(job, "cuda", log), environment);
    EXPECT_EQ(run.code, 1) << run.Text();
    for (const char* word :
         {"GPU 0 (Emulated GPU) failed: an illegal memory access", "on stream ", "step 4"}) {
      EXPECT_NE(run.err.find(word), std::string::npos) << word << "\n" << run.Text();
    }
    EXPECT_EQ(ReadFile(job.run_dir() + "/checkpoints/latest"), "step_3");
    const Outcome rest = OnGpu(WithText(job, "cuda", log));
    EXPECT_EQ(rest.code, 0) << rest.Text();
    EXPECT_EQ(LossesOf(job), LossesOf(whole));
  }
}

}  // namespace
}  // namespace fsdp::e2e
