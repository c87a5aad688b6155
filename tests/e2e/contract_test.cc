// The files, records and lines that a run shows and leaves.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

// The relative change that another order of summing a batch's `targets` may make, once in each of
// `steps` updates.
double Rounding(double steps, double targets) { return steps * targets * std::ldexp(1, -24); }

void ExpectClose(double a, double b, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(a - b), tolerance * std::abs(b)) << what << ": " << a << " against " << b;
}

void ExpectSameCurve(const std::vector<Json>& got, const std::vector<Json>& want,
                     const std::string& what) {
  const auto steps = OfKind(got, "step"), expected = OfKind(want, "step");
  ASSERT_EQ(steps.size(), expected.size()) << what;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string where = what + ", step " + std::to_string(i + 1);
    const double n = static_cast<double>(i + 1);
    const double tolerance = Rounding(n, steps[i]["tokens"].get<double>() / n);
    ExpectClose(steps[i]["loss"], expected[i]["loss"], tolerance, where + ", loss");
    ExpectClose(steps[i]["grad_norm"], expected[i]["grad_norm"], tolerance, where + ", grad_norm");
    EXPECT_EQ(steps[i]["lr"], expected[i]["lr"]) << where;
    EXPECT_EQ(steps[i]["tokens"], expected[i]["tokens"]) << where;
  }
}

TEST(Run, LeavesWhatTheInterfaceSays) {
  Job job;
  const Outcome outcome = job.Train();
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_EQ(outcome.err, "");

  const std::vector<Json> records = ReadMetrics(job.run_dir());
  ASSERT_EQ(records.size(), 14u);
  EXPECT_EQ(records[11]["kind"], "checkpoint");  // At the end, where nothing else is asked for.
  EXPECT_EQ(records[11]["step"], 10);
  const Json& run = records.front();
  EXPECT_EQ(run["kind"], "run");
  EXPECT_EQ(run["world_size"], 1);
  EXPECT_EQ(run["threads"], 1);
  EXPECT_EQ(run["seed"], 1337);
  EXPECT_EQ(run["steps"], 10);
  // (64 + 16) 16 + 2 (12 16 16 + 13 16) + 2 16
  EXPECT_EQ(run["parameters"], 7872);
  EXPECT_EQ(records.back(), (Json{{"kind", "end"}, {"reason", "done"}}));
  for (int64_t s = 1; s <= 10; ++s) {
    const Json& step = records[static_cast<size_t>(s)];
    EXPECT_EQ(step["kind"], "step");
    EXPECT_EQ(step["step"], s);
    EXPECT_EQ(step["tokens"], s * 4 * 16);
    for (const char* key :
         {"loss", "grad_norm", "lr", "step_time_s", "tokens_per_s", "tflops_per_device"}) {
      ASSERT_TRUE(step[key].is_number_float()) << key << " of " << step;
      EXPECT_GT(step[key].get<double>(), 0) << key;
    }
    EXPECT_TRUE(step.contains("mfu"));
    for (const char* key : {"loss", "grad_norm"}) {  // Printed to read back to the same bits.
      const auto value = step[key].get<double>();
      EXPECT_EQ(static_cast<double>(static_cast<float>(value)), value) << key;
    }
    for (const char* key : {"allocated_peak", "active_peak", "reserved_peak"}) {
      EXPECT_TRUE(step["memory"][key].is_number_integer()) << key;
    }
  }
  // Uniform over 64 tokens to begin with, and the tokens can be learnt.
  EXPECT_NEAR(records[1]["loss"].get<double>(), std::log(64.0), 0.1);
  EXPECT_LT(records[10]["loss"].get<double>(), records[1]["loss"].get<double>());

  const Json provenance = Json::parse(ReadFile(job.run_dir() + "/provenance.json"));
  EXPECT_EQ(provenance["command_line"][1], "--config");
  EXPECT_EQ(provenance["world_size"], 1);
  EXPECT_EQ(provenance["threads"], 1);
  EXPECT_EQ(provenance["seed"], 1337);
  EXPECT_EQ(provenance["git"], run["git"]);
  EXPECT_FALSE(provenance["host"]["name"].get<std::string>().empty());

  const Outcome print = Call({"config", "print", "--config", job.run_dir() + "/recipe.yaml"});
  EXPECT_EQ(print.code, 0) << print.Text();
  EXPECT_EQ(print.out, ReadFile(job.run_dir() + "/recipe.yaml"));

  EXPECT_NE(ReadFile(job.run_dir() + "/logs/rank_0.log").find("rank 0 of 1, no launcher"),
            std::string::npos);
}

TEST(Run, LogsEveryFewStepsAndTheLast) {
  Job job;
  ASSERT_EQ(job.Train({"log.every=4"}).code, 0);
  std::vector<int64_t> steps;
  for (const Json& record : OfKind(ReadMetrics(job.run_dir()), "step")) {
    steps.push_back(record["step"]);
    EXPECT_EQ(record["tokens"], 64 * steps.back());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{4, 8, 10}));
}

TEST(Run, ConsoleIsPlainLinesInAPipe) {
  Job job;
  for (const Variables& variables : {Variables{{"TERM", "xterm"}}, Variables{{"NO_COLOR", "1"}}}) {
    const Outcome outcome =
        job.Train({"run.dir=" + job.RunDir(variables.begin()->first)}, variables);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find('\r'), std::string::npos) << outcome.out;
    for (const char* text : {"\nstep  1/10  loss 4.", "\nstep 10/10  loss ", "run: "}) {
      EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in " << outcome.out;
    }
  }
}

// SGD: AdamW hides a wrong factor.
Strings OnText(const Strings& more = {}) {
  Strings settings = {"data.train.source=text",
                      "model.vocab_size=256",
                      "train.steps=20",
                      "train.global_batch_size=6",
                      "data.valid={fraction: 0.05}",
                      "optimizer={name: sgd, lr: 0.5, momentum: 0.9}"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  return text;
}

TEST(Worlds, AgreeWithOneRankWhateverTheStrategy) {
  Job job;
  const Strings text = OnText({"data.train.paths=[" + job.dir().Write("text", Text()) + "]",
                               "eval={every: 10, steps: 3, sample: {prompt: 'line ', "
                               "max_tokens: 8, temperature: 0}}"});
  job.RunDir("one");
  const Outcome one = job.Train(text);
  ASSERT_EQ(one.code, 0) << one.Text();
  const std::vector<Json> want = ReadMetrics(job.run_dir());
  ASSERT_EQ(OfKind(want, "step").size(), 20u);
  ASSERT_EQ(OfKind(want, "eval").size(), 2u);

  struct Case {
    int world;
    std::string name;
    Strings settings;
  };
  const std::vector<Case> cases = {
      {2, "full", {}},
      {3, "full", {"fsdp.communicators=1", "train.activation_checkpointing=full"}},
      {4, "full", {"fsdp.limit_all_gathers=1", "fsdp.reduce_buffers=1"}},
      {2, "shard_grad_op", {"fsdp.sharding_strategy=shard_grad_op"}},
      {3, "no_shard", {"fsdp.sharding_strategy=no_shard"}},
      {4, "hybrid", {"fsdp={sharding_strategy: hybrid_shard, shard_size: 2}"}},
      {2, "unsharded", {"fsdp.gradient_accumulation=unsharded", "train.micro_batch_size=1"}},
  };
  for (const Case& c : cases) {
    const std::string what = c.name + " on " + std::to_string(c.world);
    job.RunDir(c.name + std::to_string(c.world));
    Strings settings = text;
    settings.insert(settings.end(), c.settings.begin(), c.settings.end());
    const Outcome outcome = job.Launch(c.world, settings);
    ASSERT_EQ(outcome.code, 0) << what << "\n" << outcome.Text();
    const std::vector<Json> got = ReadMetrics(job.run_dir());
    ExpectSameCurve(got, want, what);
    EXPECT_EQ(got.front()["world_size"], c.world);
    EXPECT_EQ(Json::parse(ReadFile(job.run_dir() + "/provenance.json"))["world_size"], c.world);
    const auto evals = OfKind(got, "eval"), expected = OfKind(want, "eval");
    ASSERT_EQ(evals.size(), expected.size()) << what;
    for (size_t i = 0; i < evals.size(); ++i) {
      EXPECT_EQ(evals[i]["step"], expected[i]["step"]);
      ExpectClose(evals[i]["loss"], expected[i]["loss"],
                  Rounding(evals[i]["step"].get<double>(), 6 * 16), what + ", evaluation");
    }
    // An evaluation's record follows its step's.
    for (size_t i = 1; i < got.size(); ++i) {
      if (got[i]["kind"] != "eval") continue;
      EXPECT_EQ(got[i]["step"], got[i - 1]["step"]) << what;
    }
    EXPECT_NE(outcome.out.find("[0] step 20/20"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("[0] sample: line "), std::string::npos) << outcome.out;
    for (int rank = 0; rank < c.world; ++rank) {
      const std::string log =
          ReadFile(job.run_dir() + "/logs/rank_" + std::to_string(rank) + ".log");
      EXPECT_NE(log.find("rank " + std::to_string(rank) + " of " + std::to_string(c.world)),
                std::string::npos)
          << log;
      EXPECT_NE(log.find(", by fsdp-train launch"), std::string::npos) << log;
    }
  }
}

TEST(Worlds, ABatchSmallerThanTheWorldIsTheSameBatch) {
  Job job;
  job.RunDir("one");
  ASSERT_EQ(job.Train({"train.global_batch_size=1", "model.vocab_size=61"}).code, 0);
  const std::vector<Json> want = ReadMetrics(job.run_dir());
  job.RunDir("three");
  const Outcome three = job.Launch(3, {"train.global_batch_size=1", "model.vocab_size=61"});
  ASSERT_EQ(three.code, 0) << three.Text();
  ExpectSameCurve(ReadMetrics(job.run_dir()), want, "three ranks");
}

TEST(Worlds, OneTokenASequence) {
  Job job;
  job.RunDir("one");
  ASSERT_EQ(job.Train({"data.seq_len=1"}).code, 0);
  const std::vector<Json> want = ReadMetrics(job.run_dir());
  job.RunDir("three");
  ASSERT_EQ(job.Launch(3, {"data.seq_len=1"}).code, 0);
  ExpectSameCurve(ReadMetrics(job.run_dir()), want, "three ranks");
}

TEST(Worlds, ARunRepeatsBitForBit) {
  Job job;
  for (const char* name : {"a", "b"}) {
    job.RunDir(name);
    ASSERT_EQ(job.Launch(3).code, 0);
  }
  const auto a = OfKind(ReadMetrics(job.RunDir("a")), "step");
  const auto b = OfKind(ReadMetrics(job.RunDir("b")), "step");
  ASSERT_EQ(a.size(), 10u);
  ASSERT_EQ(b.size(), 10u);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]["loss"], b[i]["loss"]);
    EXPECT_EQ(a[i]["grad_norm"], b[i]["grad_norm"]);
  }
}

TEST(Launch, OfACompleteRunSaysWhatToType) {
  Job job;
  ASSERT_EQ(job.Train().code, 0);
  const Outcome again = job.Train();
  EXPECT_EQ(again.code, 0) << again.Text();
  EXPECT_NE(again.out.find("nothing to do: step 10 is the last. More steps: --set train.steps=20"),
            std::string::npos)
      << again.out;
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "step").size(), 10u);
}

TEST(Launch, StartsAgainWithoutACheckpointAndKeepsTheOldRecords) {
  Job job;
  ASSERT_EQ(job.Train({"checkpoint.every=null"}).code, 0);
  const std::string first = ReadFile(job.run_dir() + "/metrics.jsonl");
  const Outcome again = job.Train({"checkpoint.every=null"});
  EXPECT_EQ(again.code, 0) << again.Text();
  EXPECT_NE(again.out.find("metrics.1.jsonl"), std::string::npos) << again.out;
  EXPECT_EQ(ReadFile(job.run_dir() + "/metrics.1.jsonl"), first);
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "step").size(), 10u);
}

TEST(DryRun, WritesNothing) {
  Job job;
  for (const Strings& flags : {Strings{"--dry-run"}, Strings{"--device", "sim"}}) {
    Strings arguments = job.Flags();
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_NE(outcome.out.find("fits: yes"), std::string::npos) << outcome.out;
    EXPECT_FALSE(Exists(job.run_dir()));
  }
  Strings arguments = job.LaunchArguments(3, {});
  arguments.push_back("--dry-run");
  const Outcome outcome = Call(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_NE(outcome.out.find("[0] memory of each of 3 ranks"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("[1]"), std::string::npos) << outcome.out;
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(Plan, JsonHasTheInterfacesFields) {
  Job job;
  const Outcome outcome = Call({"plan", "--config", job.recipe(), "--world-size", "4", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const Json plan = Json::parse(outcome.out);
  EXPECT_EQ(plan["world_size"], 4);
  EXPECT_EQ(plan["local_world_size"], 4);
  for (const char* key : {"step_time_s", "tokens_per_s", "tflops_per_device"}) {
    ASSERT_TRUE(plan.contains(key));
    EXPECT_TRUE(plan[key].is_null()) << key;
  }
  int64_t sum = 0;
  for (const char* key : {"parameters", "gradients", "optimizer", "activations", "unsharded"}) {
    sum += plan["memory"][key].get<int64_t>();
  }
  EXPECT_EQ(plan["memory"]["allocated_peak"], sum);
  EXPECT_EQ(plan["memory"]["active_peak"], sum);
  EXPECT_EQ(plan["memory"]["reserved_peak"], sum);
  EXPECT_GT(plan["memory"]["outside"].get<int64_t>(), 0);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["alloc_retries"], 0);
  const Json& links = plan["communication"];
  EXPECT_GT(links["all_gather_bytes"].get<int64_t>(), links["reduce_scatter_bytes"].get<int64_t>());
  EXPECT_GT(links["reduce_scatter_bytes"].get<int64_t>(), 0);
  EXPECT_TRUE(links["exposed_s"].is_null());
}

// As many bytes as a rank may have: a plan above them ends before anything is allocated, and a
// caching allocator says what it has used.
TEST(Run, OfThePapersRuntime) {
  Job job;
  const Strings caching = {"fsdp={buffers: caching, communicators: 1}"};
  ASSERT_EQ(job.Launch(2, caching).code, 0);
  const Outcome planned =
      Call({"plan", "--config", job.recipe(), "--set", caching[0], "--world-size", "2", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.Text();
  const Json plan = Json::parse(planned.out)["memory"];
  for (const Json& step : OfKind(ReadMetrics(job.run_dir()), "step")) {
    const Json& memory = step["memory"];
    EXPECT_GT(memory["allocated_peak"], 0);
    EXPECT_LE(memory["allocated_peak"], memory["active_peak"]);
    EXPECT_LE(memory["active_peak"], memory["reserved_peak"]);
    EXPECT_EQ(memory["alloc_retries"], 0);
    // Segments, and host memory, which is a part of it.
    const auto reserved = memory["reserved_peak"].get<int64_t>();
    EXPECT_EQ((reserved - memory["host"].get<int64_t>()) % (2 << 20), 0);
    EXPECT_LE(memory["allocated_peak"], plan["allocated_peak"]);
    EXPECT_LE(memory["active_peak"], plan["active_peak"]);
    EXPECT_LE(memory["reserved_peak"], plan["reserved_peak"]);
  }
  for (const std::string buffers : {"slots", "caching"}) {
    Job small;
    const Outcome refused =
        small.Train({"run.memory_limit=100000", "fsdp={buffers: " + buffers + "}"});
    EXPECT_EQ(refused.code, 3) << refused.Text();
    EXPECT_NE(refused.err.find("run.memory_limit is 97.7 KiB"), std::string::npos) << refused.err;
    EXPECT_FALSE(Exists(small.run_dir()));
  }
}

// The cost of communication is found by leaving it out: such a run keeps no weights.
TEST(Run, WithoutCommunication) {
  Job job;
  const Strings fake = {"fsdp={fake_all_gather: true, fake_reduce: true}"};
  ASSERT_EQ(job.Launch(2, fake).code, 0);
  const auto records = ReadMetrics(job.run_dir());
  EXPECT_EQ(records[0]["fake"], Json({"all_gather", "reduce"}));
  for (const Json& step : OfKind(records, "step")) {
    EXPECT_EQ(step["communication"]["all_gather_bytes"], 0);
    EXPECT_EQ(step["communication"]["reduce_scatter_bytes"], 0);
  }
  Job saved;
  ASSERT_EQ(saved.Train({"checkpoint.every=1", "train.steps=1"}).code, 0);
  const Outcome resumed = saved.Launch(2, {"fsdp.fake_reduce=true"});
  EXPECT_EQ(resumed.code, 2) << resumed.Text();
  const std::string cure = "give run.dir another directory";
  EXPECT_NE(resumed.err.find(cure), std::string::npos) << resumed.err;
  EXPECT_EQ(resumed.err.find(cure), resumed.err.rfind(cure)) << resumed.err;
}

// Ranks of other hosts are received from, in memory that those of one host do not need.
TEST(Plan, OfSeveralHosts) {
  Job job;
  const auto plan = [&](const std::string& local) {
    const Outcome outcome = Call({"plan", "--config", job.recipe(), "--world-size", "4",
                                  "--local-world-size", local, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    return Json::parse(outcome.out);
  };
  const Json one = plan("4"), two = plan("2");
  EXPECT_EQ(two["local_world_size"], 2);
  EXPECT_EQ(two["memory"]["allocated_peak"], one["memory"]["allocated_peak"]);
  EXPECT_EQ(two["communication"], one["communication"]);
  EXPECT_GT(two["memory"]["outside"].get<int64_t>(),
            one["memory"]["outside"].get<int64_t>() + (4 << 20));
  const Outcome text =
      Call({"plan", "--config", job.recipe(), "--world-size", "4", "--local-world-size", "2"});
  EXPECT_NE(text.out.find("memory of each of 4 ranks, 2 to a host"), std::string::npos) << text.out;
}

// A GPU's plan needs no GPU; a run on one does.
TEST(Plan, OfADescribedMachine) {
  Job job;
  const std::string file = job.recipe() + ".hardware.yaml";
  std::ofstream(file) << "{name: a GPU, memory: 1000000000, sources: {memory: 'assumed: room'}}";
  const Outcome fits =
      Call({"plan", "--config", job.recipe(), "--world-size", "1", "--hardware", file, "--json"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_EQ(Json::parse(fits.out)["device"], "cuda");
  std::ofstream(file) << "{name: a GPU, memory: 1000, sources: {memory: 'assumed: none'}}";
  const Outcome small =
      Call({"plan", "--config", job.recipe(), "--world-size", "1", "--hardware", file});
  EXPECT_EQ(small.code, 3);
  EXPECT_NE(small.out.find("fits: no"), std::string::npos) << small.out;
  EXPECT_NE(small.err.find("makes it fit: use more ranks"), std::string::npos) << small.err;
  EXPECT_NE(small.out.find("  code            512 MiB\n"), std::string::npos) << small.out;
  std::ofstream(file) << "{name: a GPU, memory: all}";
  EXPECT_EQ(Call({"plan", "--config", job.recipe(), "--world-size", "1", "--hardware", file}).code,
            2);
  const Outcome run = Call({"--config", job.recipe(), "--device", "cuda"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("was built without it"), std::string::npos) << run.err;
}

TEST(Plan, IsWhatARunTakes) {
  Job job;
  ASSERT_EQ(job.Launch(2).code, 0);
  const Json plan =
      Json::parse(Call({"plan", "--config", job.recipe(), "--world-size", "2", "--json"}).out);
  for (const Json& step : OfKind(ReadMetrics(job.run_dir()), "step")) {
    EXPECT_EQ(step["memory"]["allocated_peak"], plan["memory"]["allocated_peak"]);
    EXPECT_EQ(step["memory"]["reserved_peak"], plan["memory"]["reserved_peak"]);
  }
}

}  // namespace
}  // namespace fsdp::e2e
