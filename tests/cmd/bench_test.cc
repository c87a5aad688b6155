// `fsdp-train bench` as a shell sees it: what it prints is JSON whose numbers belong together.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/testing/json.h"

namespace {

using Json = fsdp::testing::Json;

struct Result {
  int code = -1;
  std::string out, err;
};

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Result Bench(const std::string& arguments, const std::string& input = "") {
  std::ofstream(Path("in")) << input;
  const std::string command = "cmd/fsdp-train bench " + arguments + " <'" + Path("in") + "' >'" +
                              Path("out") + "' 2>'" + Path("err") + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), Read(Path("out")),
          Read(Path("err"))};
}

const std::string kTiny =
    " --batch 2 --seq 5 --hidden 12 --intermediate 28 --heads 2 --vocab 37 --threads 2 --seconds 0";

TEST(Bench, OpsAsJson) {
  const Result result = Bench("ops --json --device cpu" + kTiny);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json all = Json::parse(result.out);
  EXPECT_EQ(all["threads"], 2);
  EXPECT_EQ(all["device"], "cpu");
  EXPECT_EQ(all["dtype"], "fp32");
  EXPECT_EQ(all["shapes"], Json::parse(R"({"batch": 2, "seq": 5, "hidden": 12, "intermediate": 28,
                                           "heads": 2, "vocab": 37})"));
  const double flops_per_s = all["gemm_gflops"].get<double>() * 1e9;
  const double bytes_per_s = all["copy_gb_per_s"].get<double>() * 1e9;
  double linear = 0;
  for (const Json& op : all["ops"]) {
    const double seconds = op["seconds"], flops = op["flops"], bytes = op["bytes"];
    EXPECT_GT(seconds, 0);
    EXPECT_NEAR(op["gflops"].get<double>() * seconds * 1e9, flops, 1e-6 * flops) << op;
    EXPECT_NEAR(op["gb_per_s"].get<double>() * seconds * 1e9, bytes, 1e-6 * bytes) << op;
    const double limit = std::max(flops / flops_per_s, bytes / bytes_per_s);
    EXPECT_NEAR(op["share_of_limit"].get<double>() * seconds, limit, 1e-6 * limit) << op;
    const std::string name = op["name"];
    const bool fused = name.find(" and ") != std::string::npos;
    if (name.rfind("linear", 0) == 0 && !fused) linear += flops;
  }
  // 6 FLOPs a weight and row, and two for each bias: 10 rows.
  EXPECT_EQ(linear, 10 * (6 * (12 * 36 + 12 * 12 + 12 * 28 + 28 * 12) + 2 * (36 + 12 + 28 + 12)));
}

TEST(Bench, OpsListAndOnly) {
  const Result list = Bench("ops --list");
  EXPECT_EQ(list.code, 0);
  EXPECT_NE(list.out.find("attention, backward\n"), std::string::npos);
  const Result only = Bench("ops --only gelu" + kTiny);
  EXPECT_EQ(only.code, 0);
  EXPECT_NE(only.out.find("gelu, forward "), std::string::npos);
  EXPECT_EQ(only.out.find("swiglu"), std::string::npos);
}

TEST(Bench, CommAsJson) {
  for (const std::string transport : {"thread", "shm"}) {
    const Result result =
        Bench("comm --json --ranks 2 --batches 1 --sizes 64 1k --transport " + transport);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json all = Json::parse(result.out);
    EXPECT_EQ(all["transport"], transport);
    EXPECT_EQ(all["ranks"], 2);
    EXPECT_EQ(all["dtype"], "fp32");
    ASSERT_EQ(all["collectives"].size(), 10u);
    EXPECT_EQ(all["collectives"][5]["bytes"], 1024);
    for (const Json& c : all["collectives"]) {
      const double bytes = c["bytes"], seconds = c["seconds"];
      EXPECT_NEAR(c["gb_per_s"].get<double>() * seconds * 1e9, bytes, 1e-6 * bytes);
      EXPECT_GT(c["memcpy_seconds"], 0);
    }
  }
}

TEST(Bench, CommInOtherDtypes) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    const Result result =
        Bench("comm --json --ranks 3 --batches 1 --sizes 1k --transport thread --dtype " + dtype);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json all = Json::parse(result.out);
    EXPECT_EQ(all["dtype"], dtype);
    // 170 whole elements of 2 bytes for each rank; of fp32 it would be 85, and 4 bytes less.
    for (const Json& c : all["collectives"]) EXPECT_EQ(c["bytes"], 1020) << c;
    EXPECT_EQ(Json::parse(Bench("comm --json --ranks 1 --batches 1 --sizes 6 --dtype " + dtype)
                              .out)["collectives"][0]["bytes"],
              6);
  }
}

TEST(Bench, GemmAnswersARoundALine) {
  const std::string recipe = Path("recipe.yaml");
  std::ofstream(recipe) << "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2,\n"
                           "  num_attention_heads: 2, vocab_size: 101}\n"
                           "data: {train: {source: synthetic}, seq_len: 16}\n"
                           "train: {micro_batch_size: 2, global_batch_size: 4}\n";
  const Result result = Bench("gemm --ask --threads 1 --config " + recipe, "1\n3\n0\n");
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  for (const size_t rounds : {1, 3}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const Json answer = Json::parse(line);
    EXPECT_EQ(answer["seconds"].size(), rounds);
    double flops = answer["attention_flops"];
    for (const Json& part : answer["parts"]) flops += part["flops"].get<double>();
    // 64 tokens: 6 FLOPs a weight of 12 h^2 a layer and of the head, and 6 h T a layer.
    EXPECT_EQ(flops, 64 * 6.0 * (2 * (12 * 24 * 24 + 24 * 16) + 101 * 24));
  }
  const Result one = Bench("gemm --ask --threads 1 --config " + recipe, "2 1\n1\n3 0\n");
  ASSERT_EQ(one.code, 0) << one.err;
  std::istringstream answers(one.out);
  for (const size_t rounds : {2, 1, 3}) {
    std::string line;
    ASSERT_TRUE(std::getline(answers, line));
    const Json answer = Json::parse(line);
    EXPECT_EQ(answer["seconds"].size(), rounds);
    EXPECT_EQ(answer.contains("parts"), rounds == 1) << line;
  }
  const Result none = Bench("gemm --ask --threads 1 --config " + recipe, "1 15\n");
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "bench gemm: there is no product 15, this step has 15\n");
  const Result table = Bench("gemm --rounds 1 --threads 1 --config " + recipe);
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("the products of a step"), std::string::npos) << table.out;
}

TEST(Bench, OpsAnswerANameALine) {
  const std::string ops =
      "ops --ask --seconds 0 --threads 1 --batch 1 --seq 4 --hidden 8 "
      "--intermediate 16 --heads 2 --vocab 11 --only 'attention, '";
  const Result result = Bench(ops, "attention, forward\nattention, backward\nattention, forward\n");
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  for (const double products : {2, 5, 2}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const Json answer = Json::parse(line);
    // Products of 10 pairs below the diagonal, for two heads of 4.
    EXPECT_EQ(answer["flops"], products * 2 * 10 * 2 * 4);
    EXPECT_GT(answer["seconds"], 0);
  }
  const Result other = Bench(ops, "rope\n");
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(other.err, "bench ops: there is no op `rope`\n");
}

TEST(Bench, MistakesExitWith2) {
  for (const std::string arguments : {"",
                                      "nonsense",
                                      "ops --heads 0",
                                      "ops --heads 5 --hidden 12",
                                      "ops --only nothing",
                                      "ops --seconds x",
                                      "ops --list --json",
                                      "comm --ranks 0",
                                      "comm --transport tcp",
                                      "comm --sizes 4",
                                      "comm --dtype bf16 --sizes 2",
                                      "comm --dtype int32",
                                      "comm --sizes x",
                                      "comm --ask --json",
                                      "ops --ask --json",
                                      "gemm",
                                      "gemm --config /nonexistent.yaml",
                                      "ops --device gpu",
                                      "ops --dtype int32",
                                      "floor",
                                      "floor --device cpu",
                                      "floor --hardware /nonexistent.yaml"}) {
    const Result result = Bench(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err, "") << arguments;
  }
  EXPECT_EQ(Bench("comm --ranks 4 --sizes 15").err,
            "bench comm: a size is 15 bytes, want at least 4 for each of 4 ranks\n");
  EXPECT_EQ(Bench("comm --ranks 4 --sizes 7 --dtype fp16").err,
            "bench comm: a size is 7 bytes, want at least 2 for each of 4 ranks\n");
}

TEST(Bench, FloorOfAStep) {
  const std::string recipe = Path("recipe.yaml"), machine = Path("machine.yaml");
  std::ofstream(recipe) << "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2,\n"
                           "  num_attention_heads: 2, vocab_size: 101}\n"
                           "data: {train: {source: synthetic}, seq_len: 16}\n"
                           "train: {micro_batch_size: 2, global_batch_size: 4}\n";
  std::ofstream(machine) << "{name: a GPU, fp32_flops: 1.0e+9, attention_forward_flops: 1.0e+9,\n"
                            " attention_backward_flops: 1.0e+9, copy_bytes_per_s: 1.0e+18,\n"
                            " sources: {fp32_flops: 'assumed: x', copy_bytes_per_s: 'assumed: x',\n"
                            "  attention_forward_flops: 'assumed: x',\n"
                            "  attention_backward_flops: 'assumed: x'}}\n";
  const std::string flags = "floor --config " + recipe + " --hardware " + machine;
  const Result result = Bench(flags + " --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json floor = Json::parse(result.out);
  EXPECT_EQ(floor["tokens"], 64);
  EXPECT_EQ(floor["hardware"], "a GPU");
  // The products, and attention's below the diagonal: two forward, five backward, of 17 / 2 tokens.
  const double flops = 64 * (6.0 * (2 * 12 * 24 * 24 + 101 * 24) + 2 * 7 * 2 * 24 * 17 / 2.0);
  EXPECT_NEAR(floor["seconds"].get<double>(), flops * 1e-9, 1e-6 * flops * 1e-9);
  EXPECT_NEAR(floor["tokens_per_s"].get<double>(), 64 / (flops * 1e-9), 1);
  const Result table = Bench(flags);
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("\nthe floor "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\nat the floor "), std::string::npos) << table.out;
  // Bytes have one unit: the vocabulary's matrix makes a bigger step of some GiB.
  const Result bigger = Bench(flags + " --set model.vocab_size=4000000");
  const double gib =
      Json::parse(Bench(flags + " --set model.vocab_size=4000000 --json").out)["needless_bytes"]
          .get<double>() /
      (1 << 30);
  char needless[40];
  std::snprintf(needless, sizeof(needless), "\nno floor needs %.4g GiB and ", gib);
  EXPECT_GT(gib, 1);
  EXPECT_NE(bigger.out.find(needless), std::string::npos) << bigger.out;
  EXPECT_EQ(bigger.out.find("GB"), std::string::npos) << bigger.out;
  const Result offloaded = Bench(flags + " --set fsdp.cpu_offload.optimizer=true");
  EXPECT_EQ(offloaded.code, 2);
  EXPECT_NE(offloaded.err.find("a GPU has no host_link_bytes_per_s"), std::string::npos)
      << offloaded.err;
  const Result halves = Bench(flags + " --set fsdp.mixed_precision.param_dtype=bf16");
  EXPECT_EQ(halves.code, 2);
  EXPECT_NE(halves.err.find("a GPU has no bf16_flops"), std::string::npos) << halves.err;
}

// A CPU's file gives the floor of a CPU, without what a GPU launches.
TEST(Bench, FloorOfACpu) {
  const std::string recipe = Path("recipe.yaml"), machine = Path("machine.yaml");
  std::ofstream(recipe) << "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2,\n"
                           "  num_attention_heads: 2, vocab_size: 101}\n"
                           "data: {train: {source: synthetic}, seq_len: 16}\n"
                           "train: {micro_batch_size: 2, global_batch_size: 4}\n"
                           "fsdp: {mixed_precision: {param_dtype: bf16}}\n";
  std::ofstream(machine)
      << "{name: a CPU, device: cpu, kernels: amx_emulated, bf16_flops: 1.0e+9,\n"
         " attention_forward_flops: 1.0e+9, attention_backward_flops: 1.0e+9,\n"
         " copy_bytes_per_s: 1.0e+18, sources: {bf16_flops: 'assumed: a',\n"
         " attention_forward_flops: 'assumed: a', attention_backward_flops: 'assumed: a',\n"
         " copy_bytes_per_s: 'assumed: a'}}\n";
  const std::string flags = "floor --device cpu --config " + recipe + " --hardware " + machine;
  const Result object = Bench(flags + " --json");
  ASSERT_EQ(object.code, 0) << object.err;
  const Json floor = Json::parse(object.out);
  EXPECT_EQ(floor["cpu_kernels"], "amx_emulated");
  EXPECT_EQ(floor["kernels"], 0);
  // 64 tokens, 6 FLOPs a weight of two layers and of the head. Attention has two products of half
  // of the pairs forward and five on the way back.
  const double flops = 64 * 6.0 * (2 * 12 * 24 * 24 + 101 * 24);
  const double attention = 2 * (2 + 5) * 64 * 24 * 17 / 2.0 * 2;
  EXPECT_NEAR(floor["seconds"].get<double>(), (flops + attention) / 1e9, 1e-9);
  EXPECT_NE(object.err.find("note: the rates of a CPU are those of amx_emulated kernels"),
            std::string::npos)
      << object.err;
  const Result table = Bench(flags);
  EXPECT_EQ(table.code, 0);
  EXPECT_EQ(table.out.rfind("a CPU, kernels amx_emulated, 1 rank, 64 tokens a step\n", 0), 0u)
      << table.out;
  EXPECT_EQ(table.out.find("launches"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\nat the floor "), std::string::npos) << table.out;
  const Result other = Bench("floor --device cuda --config " + recipe + " --hardware " + machine);
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(other.err, "bench floor: --device cuda, and " + machine +
                           " describes a machine whose device is cpu\n");
}

TEST(Bench, HelpNamesEveryBench) {
  const Result help = Bench("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"ops", "comm", "gemm", "floor"}) {
    EXPECT_NE(help.out.find(name), std::string::npos);
    EXPECT_EQ(Bench(std::string(name) + " --help").code, 0);
  }
}

}  // namespace
