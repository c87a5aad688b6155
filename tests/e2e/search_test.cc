// `plan --search` from outside.
#include <gtest/gtest.h>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr char kMachine[] = "configs/hardware/h100-80gb.yaml";

Strings SearchOf(const Job& job, const Strings& more = {}) {
  Strings search = {"plan",         "--search", "--config",   job.recipe(),
                    "--world-size", "2",        "--hardware", kMachine};
  search.insert(search.end(), more.begin(), more.end());
  return search;
}

TEST(Search, PrintsFlagsThatPlanTakes) {
  Job job;
  const Outcome found = Call(SearchOf(job, {"--json"}));
  ASSERT_EQ(found.code, 0) << found.Text();
  const Json result = Json::parse(found.out);
  EXPECT_TRUE(result["all"].get<bool>());
  const Json& best = result["best"][0];
  Strings plan = {"plan", "--config",   job.recipe(), "--world-size",
                  "2",    "--hardware", kMachine,     "--json"};
  for (const Json& one : best["set"]) plan.insert(plan.end(), {"--set", one.get<std::string>()});
  const Outcome planned = Call(plan);
  ASSERT_EQ(planned.code, 0) << planned.Text();
  const Json run = Json::parse(planned.out);
  EXPECT_EQ(run["step_time_s"], best["step_time_s"]);
  EXPECT_EQ(run["memory"]["allocated_peak"], best["planned"]);
  EXPECT_LE(best["step_time_s"].get<double>(), result["own_step_time_s"].get<double>());
  EXPECT_EQ(Call(SearchOf(job, {"--json"})).out, found.out);  // Equal searches, equal texts.
}

TEST(Search, TellsAPersonWhatItFound) {
  Job job;
  const Outcome found = Call(SearchOf(job));
  ASSERT_EQ(found.code, 0) << found.Text();
  for (const char* part : {" recipes on 2 ranks of ", "the recipe as it is: ", "\n  1  ", "--set ",
                           "the others:\n", "the nearest: "}) {
    EXPECT_NE(found.out.find(part), std::string::npos) << part << "\n" << found.out;
  }
}

// 70 billion parameters on 64 GPUs: activations do not fit. The cure that leaves them on the host
// is faster than the one that computes them again.
TEST(Search, FindsTheCuresOfAPlanInNoTime) {
  const TempDir dir;
  const std::string recipe = dir.Write(
      "r.yaml",
      "model: {preset: llama3-70b}\n"
      "data: {train: {source: synthetic}, valid: null, seq_len: 8192}\n"
      "train: {micro_batch_size: 1, global_batch_size: 128, activation_checkpointing: selective}\n"
      "fsdp: {mixed_precision: {param_dtype: bf16}}\n");
  const Outcome found = Call({"plan", "--search", "--budget", "0.01", "--config", recipe,
                              "--world-size", "64", "--hardware", kMachine, "--json"});
  ASSERT_EQ(found.code, 0) << found.Text();
  const Json result = Json::parse(found.out);
  EXPECT_FALSE(result["all"].get<bool>());
  EXPECT_EQ(result["best"][0]["set"], Json({"train.activation_offload=host"})) << found.out;
  EXPECT_TRUE(result["best"][0]["fits_host"].get<bool>());
  EXPECT_EQ(result["best"][0]["host_of_all"], 8 * result["best"][0]["host"].get<int64_t>());
}

TEST(Search, SaysThatAFileDoesNotKnowItsHost) {
  Job job;
  std::string file = ReadFile("configs/hardware/rtx4090.yaml");
  for (size_t at = 0; (at = file.find("host_memory: ")) != std::string::npos;) {
    const size_t line = file.rfind('\n', at);
    file.erase(line, file.find('\n', at) - line);
  }
  const Strings on = {"--config", job.recipe(), "--world-size",
                      "4",        "--hardware", job.dir().Write("hardware.yaml", file)};
  for (Strings words : {Strings{"plan"}, Strings{"plan", "--search"}, Strings{"simulate"}}) {
    words.insert(words.end(), on.begin(), on.end());
    const Outcome found = Call(words);
    EXPECT_EQ(found.code, 0) << found.Text();
    EXPECT_NE(found.out.find(" fits on the device; needs "), std::string::npos) << found.out;
    EXPECT_NE(found.out.find(" a host, which the hardware file does not know\n"),
              std::string::npos);
    EXPECT_EQ(found.out.find("fits: yes"), std::string::npos) << found.out;
  }
}

TEST(Search, RefusesWithOneError) {
  Job job;
  const Outcome nowhere = Call({"plan", "--search", "--config", job.recipe(), "--world-size", "2"});
  EXPECT_EQ(nowhere.code, 2) << nowhere.Text();
  EXPECT_NE(nowhere.err.find("--search requires --hardware"), std::string::npos) << nowhere.err;
  const Outcome idle =
      Call({"plan", "--budget", "3", "--config", job.recipe(), "--world-size", "2"});
  EXPECT_EQ(idle.code, 2) << idle.Text();
  EXPECT_NE(idle.err.find("--budget requires --search"), std::string::npos) << idle.err;
  EXPECT_EQ(Call(SearchOf(job, {"--budget", "0"})).code, 2);
  const Outcome small = Call(SearchOf(job, {"--set", "run.memory_limit=1000"}));
  EXPECT_EQ(small.code, 3) << small.Text();
  EXPECT_NE(small.err.find("The least that was found is "), std::string::npos) << small.err;
}

}  // namespace
}  // namespace fsdp::e2e
