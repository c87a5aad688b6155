// `simulate` from outside: what it prints and leaves, and its mistakes.
#include <gtest/gtest.h>

#include <string>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr char kMachine[] =
    "{name: a GPU, memory: 80e9, bf16_flops: 300e12, fp32_flops: 20e12, copy_bytes_per_s: 1e12,\n"
    " attention_forward_flops: 100e12, attention_backward_flops: 100e12,\n"
    " network: {ranks_per_host: 2,\n"
    "  inside: {ring_bytes_per_s: 1e11, ring_step_s: 1e-6}"
    ", between: {ring_bytes_per_s: 1e10, ring_step_s: 1e-5}},\n"
    " sources: {memory: 'assumed: a', bf16_flops: 'assumed: b', fp32_flops: 'assumed: c',\n"
    "  copy_bytes_per_s: 'assumed: d', attention_forward_flops: 'assumed: e',\n"
    "  attention_backward_flops: 'assumed: f', network: 'seen: 7b batch_2 256'}}\n";

class Simulate : public ::testing::Test {
 protected:
  std::string Machine(const std::string& old = "", const std::string& with = "") const {
    std::string text = kMachine;
    text.replace(text.find("80e9"), 4, "80000000000");
    if (!old.empty()) text.replace(text.find(old), old.size(), with);
    return directory_.Write("machine.yaml", text);
  }
  Strings Command(const std::string& machine, const std::string& world = "4",
                  const Strings& more = {}) const {
    Strings command = {"simulate", "--config",   job_.recipe(), "--world-size",
                       world,      "--hardware", machine};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  // One line that says so, before anything is simulated.
  void ExpectMistake(const Strings& command, const std::string& part) const {
    const Outcome outcome = Call(command);
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }

  Job job_;
  TempDir directory_;
};

TEST_F(Simulate, PrintsAnObjectWithoutNulls) {
  const Outcome outcome = Call(Command(Machine(), "4", {"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const Json plan = Json::parse(outcome.out);
  for (const char* key : {"step_time_s", "tokens_per_s", "samples_per_s", "tflops_per_device",
                          "hardware_tflops_per_device", "floor_s", "mfu", "run_seconds",
                          "device_hours", "tokens_per_day"}) {
    EXPECT_GT(plan[key].get<double>(), 0) << key;
  }
  EXPECT_EQ(plan["local_world_size"], 2);
  EXPECT_EQ(plan["idle_ranks"], 2);  // 4 samples are 2 micro-batches of 2.
  const auto number = [&](const char* key) { return plan[key].get<double>(); };
  EXPECT_DOUBLE_EQ(number("mfu"), number("tflops_per_device") / 20);  // fp32_flops: 20e12.
  EXPECT_DOUBLE_EQ(number("run_seconds"), number("step_time_s") * 10);
  EXPECT_DOUBLE_EQ(number("device_hours"), number("run_seconds") * 4 / 3600);
  EXPECT_DOUBLE_EQ(number("tokens_per_day"), number("tokens_per_s") * 86400);
  EXPECT_GE(plan["step_time_s"], plan["floor_s"]);
  EXPECT_TRUE(plan["communication"]["exposed_s"].is_number());
  double parts = 0;
  for (const Json& seconds : plan["breakdown"]) parts += seconds.get<double>();
  EXPECT_NEAR(parts, plan["step_time_s"].get<double>(), 1e-9);
  EXPECT_EQ(plan["calibrated_on"], Json({"7b batch_2 256"}));
  EXPECT_EQ(plan["fits"], true);
  // `plan --hardware` has the same; without hardware it knows no time.
  Strings command = Command(Machine(), "4", {"--json"});
  command[0] = "plan";
  EXPECT_EQ(Call(command).out, outcome.out);
  const Json here =
      Json::parse(Call({"plan", "--config", job_.recipe(), "--world-size", "4", "--json"}).out);
  EXPECT_TRUE(here["step_time_s"].is_null() && here["breakdown"].is_null());
  EXPECT_TRUE(here["mfu"].is_null() && here["run_seconds"].is_null());
  EXPECT_EQ(here["idle_ranks"], 2);
}

// A run by epochs is as long as its data, which nobody has opened.
TEST_F(Simulate, PrintsNullForWhatNobodyKnows) {
  const Outcome outcome =
      Call(Command(Machine(), "4", {"--json", "--set", "train={steps: null, epochs: 2}"}));
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const Json plan = Json::parse(outcome.out);
  EXPECT_TRUE(plan["run_seconds"].is_null() && plan["device_hours"].is_null()) << outcome.out;
  EXPECT_GT(plan["tokens_per_day"].get<double>(), 0);
}

// Whoever plans, simulates or starts such a job hears of it, with the cure.
TEST_F(Simulate, SaysWhichRanksHaveNoSamples) {
  const std::string
      words = "warning: " + job_.recipe() + ":",
      cure =
          ": 4 of 8 ranks have no samples, and 50.0 % of "
          "each step is computed for nothing: its 4 samples in micro-batches of 1 are dealt to "
          "ranks "
          "with room for 8. To use all, set train.global_batch_size to 8, or take 4 ranks\n";
  const Strings micro = {"--set", "train.micro_batch_size=1"};
  for (const char* command : {"plan", "simulate"}) {
    Strings all = Command(Machine(), "8", micro);
    all[0] = command;
    const Outcome text = Call(all);
    ASSERT_EQ(text.code, 0) << text.Text();
    EXPECT_NE(text.out.find(words), std::string::npos) << text.out;
    EXPECT_NE(text.out.find(cure), std::string::npos) << text.out;
    all.push_back("--json");
    const Outcome json = Call(all);
    EXPECT_EQ(Json::parse(json.out)["idle_ranks"], 4) << json.out;
    EXPECT_NE(json.err.find(cure), std::string::npos) << json.err;
  }
  Strings fits = Command(Machine(), "4", micro);
  EXPECT_EQ(Call(fits).out.find("warning"), std::string::npos);
  Strings swept = Command(Machine(), "4", micro);
  swept.insert(swept.end(), {"--sweep", "world_size=4,8"});
  const Outcome sweep = Call(swept);
  EXPECT_NE(sweep.err.find("world_size=8: "), std::string::npos) << sweep.err;
  EXPECT_NE(sweep.err.find("\n  warning: 4 of 8 ranks"), std::string::npos) << sweep.err;
  EXPECT_EQ(sweep.err.find("warning"), sweep.err.rfind("warning")) << sweep.err;
  const Outcome run =
      job_.Launch(3, {"train.micro_batch_size=1", "train.global_batch_size=2", "train.steps=1"});
  EXPECT_NE(run.Text().find(": 1 of 3 ranks have no samples, and 33.3 % of"), std::string::npos)
      << run.Text();
}

TEST_F(Simulate, LeavesAStepsTrace) {
  const std::string out = directory_ / "sim";
  const Outcome text = Call(Command(Machine(), "4", {"--out", out, "--steps", "2"}));
  ASSERT_EQ(text.code, 0) << text.Text();
  EXPECT_NE(text.out.find("\na step in time\n  step "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  set from        7b batch_2 256\n"), std::string::npos) << text.out;
  const Json plan = Json::parse(ReadFile(out + "/simulate.json"));
  EXPECT_GT(plan["step_time_s"].get<double>(), 0);
  const Json trace = Json::parse(ReadFile(out + "/traces/step_2.json"));
  EXPECT_GT((trace.is_array() ? trace : trace["traceEvents"]).size(), 20u);
  const Outcome full = Call(Command(Machine(), "4", {"--out", "/dev/full/sim"}));
  EXPECT_EQ(full.code, 5) << full.Text();
}

TEST_F(Simulate, OthersWaitForTheSlowest) {
  const auto step = [&](const Strings& more) {
    Strings all = {"--json"};
    all.insert(all.end(), more.begin(), more.end());
    return Json::parse(Call(Command(Machine(), "4", all)).out)["step_time_s"].get<double>();
  };
  EXPECT_GT(step({"--slowest", "3"}), step({}));
}

// So many multiprocessors that all tiles are in flight, and the longest sum is the longest.
TEST_F(Simulate, ExpertsMayHaveUnevenLoads) {
  const std::string machine =
      Machine("sources: {", "multiprocessors: 1024, sources: {multiprocessors: 'assumed: g', ");
  const std::string recipe = directory_.Write(
      "moe.yaml",
      "model: {family: moe, num_experts: 8, num_experts_per_tok: 2, hidden_size: 64,\n"
      "  moe_intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 2, vocab_size: 64}\n"
      "data: {train: {source: synthetic}, valid: null, seq_len: 128}\n"
      "train: {micro_batch_size: 4, global_batch_size: 4}\n");
  const auto command = [&](const char* name, const Strings& more) {
    Strings all = {name, "--config", recipe, "--world-size", "1", "--hardware", machine, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto found = [&](const char* name, const Strings& more) {
    return Json::parse(Call(command(name, more)).out);
  };
  const Json even = found("simulate", {}), skewed = found("simulate", {"--expert-load", "4"});
  EXPECT_EQ(found("simulate", {"--expert-load", "1"}), even);
  EXPECT_EQ(found("plan", {"--expert-load", "4"}), skewed);
  EXPECT_GT(skewed["step_time_s"], even["step_time_s"]);
  EXPECT_GT(skewed["floor_s"], even["floor_s"]);
  EXPECT_LE(skewed["floor_s"], skewed["step_time_s"]);
  const Strings search = {"--search", "--set", "train.micro_batch_size=1", "--expert-load"};
  const auto best = [&](const char* load) {
    Strings all = search;
    all.emplace_back(load);
    return found("plan", all)["best"][0];
  };
  EXPECT_GT(best("4")["step_time_s"], best("1")["step_time_s"]);
  EXPECT_GT(best("4")["floor_s"], best("1")["floor_s"]);
  const Json swept = found("simulate", {"--expert-load", "4", "--sweep", "optimizer.lr=1e-3"});
  EXPECT_EQ(swept[0]["step_time_s"], skewed["step_time_s"]);

  const Strings dense = {"--expert-load", "1"};
  ExpectMistake(Command(machine, "1", dense), "--expert-load: the model has no experts");
  ExpectMistake(Command(machine, "1", {"--expert-load", "2", "--sweep", "optimizer.lr=1e-3,1e-4"}),
                "--expert-load: the model has no experts");
  for (const Strings& more : {Strings{}, Strings{"--search"}}) {
    Strings words = command("plan", more);
    words.insert(words.end(), {"--expert-load", "4.5"});
    ExpectMistake(words, "--expert-load: want a number from 1 to 8 / 2: a token chooses 2 of 8");
  }
  for (const char* load : {"0.5", "nan", "0"}) {
    ExpectMistake(command("simulate", {"--expert-load", load}),
                  std::string("--expert-load: Value ") + load + " not in range");
  }
  ExpectMistake({"plan", "--config", recipe, "--world-size", "1", "--expert-load", "2"},
                "--expert-load requires --hardware");
}

TEST_F(Simulate, MistakesAreToldBeforeAnyRun) {
  ExpectMistake(Command(Machine(), "3"), "does not divide --world-size 3");
  ExpectMistake(Command(Machine(), "4", {"--local-world-size", "3"}), "--local-world-size: 3");
  ExpectMistake(Command(Machine("memory: 80000000000, ", "memry: 5, ")), "did you mean `memory`?");
  ExpectMistake(Command(Machine("'assumed: a'", "'somewhere'")), "machine.yaml:");
  ExpectMistake(Command(Machine("memory: 'assumed: a', ", "")), "memory");
  ExpectMistake(Command(Machine("name: a GPU", "name: a GPU, reached: 1.5")), "reached");
  ExpectMistake(Command(Machine(", between: {ring_bytes_per_s: 1e10, ring_step_s: 1e-5}", "")),
                "has no network.between.");
  ExpectMistake(Command(Machine("fp32_flops: 20e12, ", "fp32_flops: null, "), "1"), "fp32_flops");
  ExpectMistake(Command(directory_ / "none.yaml"), "none.yaml");
  ExpectMistake({"simulate", "--config", job_.recipe(), "--world-size", "4"}, "--hardware");
  ExpectMistake(Command(Machine(), "4", {"--slowest", "0.5"}), "--slowest");
  ExpectMistake(Command(Machine(), "4", {"--slowest", "nan"}), "--slowest: Value nan not in range");
  const std::string slow = Machine("copy_bytes_per_s: 1e12", "copy_bytes_per_s: 1e-308");
  ExpectMistake(Command(slow), slow + ":1:");
  ExpectMistake(Command(slow),
                ": copy_bytes_per_s: want a number of at least 1 and of at most "
                "1e+18, got 1e-308");
  ExpectMistake(Command(Machine("name: a GPU", "name: a GPU, launch_s: 1e308")),
                "launch_s: want a number of at least 0 and of at most 3600, got 1e308");
}

TEST_F(Simulate, WhatDoesNotFitSaysWhatWould) {
  const Outcome small = Call(
      Command(Machine("80000000000", "600000000"), "4",
              {"--set", "train.micro_batch_size=512", "--set", "train.global_batch_size=2048"}));
  EXPECT_EQ(small.code, 3) << small.Text();
  EXPECT_NE(small.err.find("does not fit"), std::string::npos) << small.err;
  // Nor where time decides, and the room is the device's.
  const Outcome cached =
      Call(Command(Machine("80000000000", "600000000"), "4",
                   {"--set", "train.micro_batch_size=512", "--set", "train.global_batch_size=2048",
                    "--set", "fsdp.buffers=caching", "--set", "fsdp.limiter=host"}));
  EXPECT_EQ(cached.code, 3) << cached.Text();
  EXPECT_NE(cached.err.find("are free (memory of a GPU"), std::string::npos) << cached.err;
}

}  // namespace
}  // namespace fsdp::e2e
