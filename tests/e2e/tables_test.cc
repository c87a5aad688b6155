// A DHEN, whose embedding tables lie outside FSDP: killed and resumed, on several hosts, and from
// an export.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>

#include "tests/e2e/fake_hosts.h"
#include "tests/e2e/rank_files.h"
#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr char kTables[] =
    "model: {family: dhen, dense_columns: 2, table_rows: [50, 90, 1000], table_bags: [1, 2, 3],\n"
    "        table_width: 8, dense_vectors: 2, num_vectors: 4, num_hidden_layers: 2,\n"
    "        num_attention_heads: 2, cross_rank: 2, intermediate_size: 5}\n";
constexpr char kRest[] =
    "run: {threads: 1, timeout_s: 60}\n"
    "data: {train: {source: clicks, planted: 2000}, valid: {fraction: 0.2}}\n"
    "train: {steps: 12, micro_batch_size: 2, global_batch_size: 24}\n"
    "eval: {every: 6, steps: 2}\n"
    "schedule: {name: constant}\n"
    "checkpoint: {every: 4, keep_last: 0}\n";
constexpr int64_t kSamples = 24;  // In a step.

Strings With(Strings settings, const Strings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

void Train(const Job& job, int world, const Strings& settings) {
  const Outcome outcome = world == 1 ? job.Train(settings) : job.Launch(world, settings);
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
}

// The records of steps, and of evaluations at every sixth step, in order. An evaluation at a stop
// in between is left out.
std::vector<Json> Curve(const std::string& run_directory) {
  std::vector<Json> curve;
  for (const Json& record : ReadMetrics(run_directory)) {
    Json kept;
    for (const char* key : {"kind", "step", "loss", "grad_norm", "normalized_entropy", "samples"}) {
      if (record.contains(key)) kept[key] = record[key];
    }
    const bool evaluation = record["kind"] == "eval" && record["step"].get<int64_t>() % 6 == 0;
    if (record["kind"] == "step" || evaluation) curve.push_back(kept);
  }
  return curve;
}

void ExpectSameRun(const std::string& got, const std::string& want, const std::string& what) {
  EXPECT_EQ(Curve(got), Curve(want)) << what;
  EXPECT_EQ(Curve(want).size(), 14u) << what;  // 12 steps and 2 evaluations.
  EXPECT_TRUE(RankFiles(got, 12) == RankFiles(want, 12)) << what << ": other bytes";
}

// Rows in bf16 are rounded by draws that belong to the step.
TEST(Tables, AKilledRunGoesOnWithTheSameBits) {
  for (const int world : {1, 3}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      const std::string what = dtype + "_on_" + std::to_string(world);
      Job job(std::string(kTables) + kRest);
      const Strings settings = {"model.table_dtype=" + dtype};
      const std::string want = job.RunDir("unbroken");
      Train(job, world, settings);
      const std::string got = job.RunDir("killed");
      // Endless, until it is killed behind its first checkpoint.
      const Strings endless = With(settings, {"train.steps=100000000"});
      Process run =
          job.Start(world == 1 ? job.Flags(endless) : job.LaunchArguments(world, endless));
      ASSERT_TRUE(Eventually([&] { return Exists(got + "/checkpoints/latest"); })) << run.Out();
      run.Signal(SIGKILL);
      run.Wait();
      // The last of its checkpoints may be behind step 12: from the first one. Rounds change no
      // bit.
      Train(job, world, With(settings, {"checkpoint.resume=4", "model.table_capacity=1"}));
      ExpectSameRun(got, want, what);
    }
  }
}

// Behind evaluations and saves, too: a plan's memory is the most that a record has, and its traffic
// is that of each. More rounds than one send more ids, rows and gradients.
TEST(Tables, RecordsAreAsPlanned) {
  for (const int world : {1, 2, 3}) {
    for (const std::string buffers : {"slots", "caching"}) {
      SCOPED_TRACE(buffers + " on " + std::to_string(world));
      Job job(std::string(kTables) + kRest);
      const std::string fsdp = "fsdp={buffers: " + buffers + ", communicators: 1}";
      Train(job, world, {fsdp});
      const Outcome outcome = Call({"plan", "--config", job.recipe(), "--set", fsdp, "--world-size",
                                    std::to_string(world), "--json"});
      ASSERT_EQ(outcome.code, 0) << outcome.Text();
      const Json plan = Json::parse(outcome.out);
      const std::vector<Json> steps = OfKind(ReadMetrics(job.run_dir()), "step");
      EXPECT_EQ(steps.size(), 12u);
      for (const Json& step : steps) {
        for (const char* key : {"allocated_peak", "active_peak", "reserved_peak"}) {
          EXPECT_LE(step["memory"][key], plan["memory"][key]) << key << " of step " << step["step"];
        }
        for (const auto& [key, bytes] : plan["communication"].items()) {
          const bool more = key == "all_to_all_bytes" && step["table_rounds"] > 1;
          if (key == "exposed_s" || more) continue;
          EXPECT_EQ(step["communication"][key], bytes) << key << " of step " << step["step"];
        }
      }
    }
  }
}

// SGD moves the dense part, as in resume_test: what ranks add up in another order changes a loss by
// kSamples roundings in each of the steps so far. A row is updated by the sum of its gradients in
// the order of samples, which no world changes.
TEST(Tables, OtherWorldsGoOnToRounding) {
  Job job(std::string(kTables) + kRest);
  const Strings settings = {"optimizer={name: sgd, lr: 0.1, momentum: 0.9, table_lr: 0.05}"};
  const std::string want = job.RunDir("unbroken");
  Train(job, 1, settings);
  const std::string got = job.RunDir("chain");
  const std::vector<std::pair<int, int>> chain = {{2, 4}, {3, 8}, {1, 12}};
  for (const auto& [world, steps] : chain) {
    Train(job, world, With(settings, {"train.steps=" + std::to_string(steps)}));
  }
  const std::vector<Json> curve = OfKind(Curve(got), "step"), same = OfKind(Curve(want), "step");
  ASSERT_EQ(curve.size(), 12u);
  ASSERT_EQ(same.size(), 12u);
  for (size_t i = 0; i < curve.size(); ++i) {
    const double tolerance = static_cast<double>((i + 1) * kSamples) * std::ldexp(1, -24);
    for (const char* key : {"loss", "grad_norm"}) {
      const auto a = curve[i][key].get<double>(), b = same[i][key].get<double>();
      EXPECT_LE(std::abs(a - b), tolerance * b) << key << " of " << curve[i];
    }
  }
}

// The weights of a run and those of its export are the same, tables among them.
TEST(Tables, AnExportIsBegunFrom) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    Job job(std::string(kTables) + kRest);
    const std::string run = job.RunDir("run");
    Train(job, 2, {"model.table_dtype=" + dtype});
    const std::string exported = job.dir() / "exported";
    const Outcome outcome = Call({"checkpoint", "export", run, "--out", exported});
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
    const Json config = Json::parse(ReadFile(exported + "/config.json"));
    EXPECT_EQ(config["model_type"], "fsdp_train_dhen");
    EXPECT_EQ(config["table_rows"], (Json{50, 90, 1000}));

    Job next(kRest);
    std::vector<std::string> runs;
    for (const std::string& from : {run, exported}) {
      runs.push_back(next.RunDir("from_" + std::to_string(runs.size())));
      Train(next, 3, {"model.init_from=" + from});
    }
    ExpectSameRun(runs[1], runs[0], dtype);
    const auto loss = [](const std::string& directory, size_t i) {
      return Curve(directory)[i]["loss"].get<double>();
    };
    EXPECT_LT(loss(runs[0], 0), loss(run, 0)) << "it begins where the other has ended";
    const Outcome other = next.Train({"model.init_from=" + exported,
                                      "model.table_rows=[50, 90, 999]", "checkpoint.resume=none"});
    EXPECT_EQ(other.code, 2) << other.Text();
    EXPECT_NE(other.err.find("model.table_rows: the recipe says [50, 90, 999]"), std::string::npos)
        << other.err;
  }
}

// Three hosts of two ranks: ids, rows and gradients go through sockets.
TEST(Tables, HostsHaveTheBitsOfOne) {
  if (const std::string why = WhyNoFakeHosts(); !why.empty()) {
    GTEST_SKIP() << "no hosts of namespaces here: " << why;
  }
  Job job(std::string(kTables) + kRest);
  for (const std::string strategy : {"full_shard", "hybrid_shard"}) {
    const bool hybrid = strategy == "hybrid_shard";
    const Strings settings = {"fsdp.sharding_strategy=" + strategy, "run.timeout_s=30"};
    const std::string want = job.RunDir(strategy + "_one");
    Train(job, 6, With(settings, hybrid ? Strings{"fsdp.shard_size=2"} : Strings{}));
    const std::string got = job.RunDir(strategy + "_three");
    FakeHosts hosts(3);
    for (const char* steps : {"train.steps=8", "train.steps=12"}) {  // Resumed, too.
      for (int rank = 0; rank < 6; ++rank) {
        hosts.Start(rank / 2, job.Flags(With(settings, {steps})),
                    {{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", "6"},
                     {"LOCAL_RANK", std::to_string(rank % 2)},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", FakeHosts::Address(0)},
                     {"MASTER_PORT", "29501"}});
      }
      for (const Outcome& outcome : hosts.Wait(kPatience)) {
        EXPECT_EQ(outcome.code, 0) << outcome.Text();
      }
    }
    ExpectSameRun(got, want, strategy);
    const auto sent = [](const std::string& directory, const char* what) {
      return OfKind(ReadMetrics(directory), "step")[3]["communication"][what].get<int64_t>();
    };
    EXPECT_GT(sent(got, "all_to_all_bytes"), 0);
    EXPECT_EQ(sent(got, "all_to_all_bytes"), sent(want, "all_to_all_bytes"));
    EXPECT_GT(sent(got, "network_bytes"), 0);
    EXPECT_EQ(sent(want, "network_bytes"), 0);
  }
}

}  // namespace
}  // namespace fsdp::e2e
