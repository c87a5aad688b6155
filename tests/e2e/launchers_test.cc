// Who starts the ranks, and from how many places: a launcher on each host, Slurm, Open MPI and
// torchrun. The bits are those of one launcher, the rules are the same.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr const char* kSecret = "correct horse battery staple";

// One launcher of several, all of them on this machine.
struct Hosts {
  explicit Hosts(const Job& job, int nodes, int ranks) : job(job), nodes(nodes), ranks(ranks) {}

  Strings Arguments(int node, const Strings& settings, const Strings& flags) const {
    Strings all = {"--nnodes",           std::to_string(nodes), "--node-rank",
                   std::to_string(node), "--rdzv-endpoint",     endpoint};
    all.insert(all.end(), flags.begin(), flags.end());
    return job.LaunchArguments(ranks, settings, all);
  }
  void Start(int node, const Strings& settings = {}, const Strings& flags = {},
             const Variables& variables = {}) {
    started.push_back(std::make_unique<Process>(
        Arguments(node, settings, flags), Process::Options{variables, "", job.dir().path(), ""}));
  }

  const Job& job;
  const int nodes, ranks;
  std::string endpoint = "localhost:" + std::to_string(FreePort());
  std::vector<std::unique_ptr<Process>> started;
};

std::vector<Json> Steps(const std::string& run_directory) {
  return OfKind(ReadMetrics(run_directory), "step");
}

// To the bit: numbers are printed so that they read back the same.
void ExpectSameBits(const std::vector<Json>& got, const std::vector<Json>& want, size_t steps) {
  ASSERT_EQ(got.size(), steps);
  ASSERT_EQ(want.size(), steps);
  for (size_t i = 0; i < steps; ++i) {
    EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << "step " << i + 1;
    EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << "step " << i + 1;
  }
}

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Launchers, TwoTrainAsOneDoes) {
  Job job;
  job.RunDir("one");
  ASSERT_EQ(job.Launch(4).code, 0);
  const std::vector<Json> want = Steps(job.run_dir());

  // Nobody gave a secret: rank 0 says so, once.
  job.RunDir("open");
  Hosts open(job, 2, 2);
  for (const int node : {1, 0}) open.Start(node);
  std::string errors;
  for (const auto& launcher : open.started) {
    const Outcome outcome = launcher->Wait();
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    errors += outcome.err;
  }
  EXPECT_EQ(errors.find("[0] warning: no secret: whoever reaches the port"), 0u) << errors;
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  ExpectSameBits(Steps(job.run_dir()), want, 10);

  // With one there is nothing to say, and it is nowhere to be read afterwards.
  job.RunDir("secret");
  Hosts hosts(job, 2, 2);
  const std::string file = job.dir().Write("secret.txt", std::string(kSecret) + "\n");
  chmod(file.c_str(), 0600);
  hosts.Start(1, {}, {"--rdzv-secret-file", file, "--log-dir", job.dir() / "logs"},
              {{"FSDP_TRAIN_HOST", "b"}});
  hosts.Start(0, {}, {}, {{"FSDP_TRAIN_SECRET", kSecret}, {"FSDP_TRAIN_HOST", "a"}});
  for (const auto& launcher : hosts.started) {
    const Outcome outcome = launcher->Wait();
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_EQ(outcome.err, "");
    EXPECT_FALSE(Holds(outcome.out, kSecret));
  }
  ExpectSameBits(Steps(job.run_dir()), want, 10);
  // With two names this machine is two hosts: the same bits, over a wire.
  EXPECT_EQ(want[0]["communication"]["network_bytes"], 0);
  EXPECT_GT(Steps(job.run_dir())[0]["communication"]["network_bytes"], 0);
  EXPECT_TRUE(Exists(job.dir() / "logs/rank_2.log"));  // Numbers are those of the job.
  EXPECT_TRUE(Exists(job.dir() / "logs/rank_3.log"));
  EXPECT_FALSE(Exists(job.dir() / "logs/rank_0.log"));
  for (const std::string& name : job.dir().List()) {
    if (name == "secret.txt" || std::filesystem::is_directory(job.dir() / name)) continue;
    EXPECT_FALSE(Holds(ReadFile(job.dir() / name), kSecret)) << name;
  }
}

TEST(Launchers, MeetOverIpv6) {
  Job job;
  Hosts hosts(job, 2, 1);
  hosts.endpoint = "[::1]:" + std::to_string(FreePort());
  for (const int node : {0, 1}) hosts.Start(node, {"run.timeout_s=60"});
  for (const auto& launcher : hosts.started) {
    const Outcome outcome = launcher->Wait();
    if (Holds(outcome.err, "Cannot assign requested address") ||
        Holds(outcome.err, "Address family not supported")) {
      GTEST_SKIP() << "this machine has no IPv6";
    }
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
  }
  EXPECT_EQ(Steps(job.run_dir()).size(), 10u);
}

TEST(Launchers, OfDifferentSecretsDoNotMeet) {
  Job job;
  Hosts hosts(job, 2, 1);
  hosts.Start(0, {"run.timeout_s=3"}, {}, {{"FSDP_TRAIN_SECRET", kSecret}});
  hosts.Start(1, {"run.timeout_s=3"}, {}, {{"FSDP_TRAIN_SECRET", "another secret of theirs"}});
  const Outcome first = hosts.started[0]->Wait(), second = hosts.started[1]->Wait();
  EXPECT_EQ(second.code, 6) << second.Text();
  EXPECT_TRUE(
      Holds(second.err, "[1] rank 1 was refused by the store at " + hosts.endpoint +
                            ": not the same secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)\n"))
      << second.err;
  EXPECT_EQ(first.code, 6) << first.Text();
  EXPECT_TRUE(Holds(first.err, "[0] rank 1 did not join the store within 3 s: ")) << first.err;
  EXPECT_TRUE(Holds(first.err, " who does not know the secret (--rdzv-secret-file or "))
      << first.err;
  for (const Outcome& outcome : {first, second}) {
    EXPECT_FALSE(Holds(outcome.Text(), kSecret) || Holds(outcome.Text(), "of theirs"));
  }
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(Launchers, AHostThatNeverComesIsNamedOnAllThatDid) {
  Job job;
  Hosts hosts(job, 3, 2);
  for (const int node : {0, 2}) hosts.Start(node, {"run.timeout_s=3"});
  for (const auto& launcher : hosts.started) {
    const Outcome outcome = launcher->Wait();
    EXPECT_EQ(outcome.code, 6) << outcome.Text();
    const std::string line = "rank 2, rank 3 did not join the store within 3 s";
    const size_t once = outcome.err.find(line);
    ASSERT_NE(once, std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(line, once + 1), std::string::npos) << outcome.err;
  }
}

TEST(Launchers, DifferentNumbersOfRanksAreRefused) {
  Job job;
  Hosts two(job, 2, 2), three(job, 2, 3);
  three.endpoint = two.endpoint;
  two.Start(0, {"run.timeout_s=3"});
  three.Start(1, {"run.timeout_s=3"});
  const Outcome outcome = three.started[0]->Wait();
  EXPECT_EQ(outcome.code, 6) << outcome.Text();
  EXPECT_TRUE(Holds(outcome.err, "says that there are 6 ranks, rank 0 that there are 4"))
      << outcome.err;
  EXPECT_EQ(two.started[0]->Wait().code, 6);
}

// One rank is killed: all launchers start their ranks again, and the run goes on to its end.
TEST(Launchers, RestartTogether) {
  for (const int victim : {0, 1}) {  // 0 holds the store.
    Job job;
    Hosts hosts(job, 2, 1);
    const Strings settings = {"train.steps=800", "checkpoint.every=50", "log.every=10"};
    for (const int node : {0, 1}) hosts.Start(node, settings, {"--max-restarts", "2"});
    // Behind the first checkpoint, which is written in the background.
    const auto saved = [&] { return OfKind(ReadMetrics(job.run_dir()), "checkpoint").size() >= 1; };
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 60 && saved(); }))
        << hosts.started[0]->Out();
    const pid_t pid = hosts.started[victim]->pid();
    ASSERT_EQ(kill(RanksOf(pid).at(victim), SIGKILL), 0);
    for (const int node : {0, 1}) {
      const Outcome outcome = hosts.started[static_cast<size_t>(node)]->Wait();
      EXPECT_EQ(outcome.code, 0) << outcome.Text();
      const std::string code = node == victim ? "137" : "6";
      EXPECT_TRUE(Holds(outcome.err, "launch: restart 1 of 2 after exit code " + code + "\n"))
          << outcome.err;
      EXPECT_FALSE(Holds(outcome.err, "restart 2 of 2")) << outcome.err;
    }
    const std::vector<Json> records = ReadMetrics(job.run_dir());
    EXPECT_EQ(OfKind(records, "resume").size(), 1u);
    EXPECT_EQ(LastStep(job.run_dir()), 800);
  }
}

// The variables that srun sets for the tasks of a step, with MASTER_PORT so that tests do not meet.
TEST(Environments, Slurm) {
  Job job;
  job.RunDir("launch");
  ASSERT_EQ(job.Launch(2).code, 0);
  const std::vector<Json> want = Steps(job.run_dir());
  job.RunDir("slurm");
  const std::string port = std::to_string(FreePort());
  std::vector<std::unique_ptr<Process>> tasks;
  for (const char* task : {"0", "1"}) {
    const Variables variables = {{"SLURM_JOB_ID", "4711"},
                                 {"SLURM_STEP_ID", "0"},
                                 {"SLURM_PROCID", task},
                                 {"SLURM_LOCALID", task},
                                 {"SLURM_NODEID", "0"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"SLURM_NTASKS", "2"},
                                 {"SLURM_STEP_NUM_NODES", "1"},
                                 {"SLURM_STEP_NODELIST", "node-1"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                 {"MASTER_PORT", port}};
    tasks.push_back(std::make_unique<Process>(
        job.Flags(), Process::Options{variables, "", job.dir().path(), ""}));
  }
  const Outcome first = tasks[0]->Wait(), second = tasks[1]->Wait();
  EXPECT_EQ(first.code, 0) << first.Text();
  EXPECT_EQ(second.code, 0) << second.Text();
  EXPECT_TRUE(Holds(first.out, "rank 0 of 2, local rank 0 of 2, from slurm\n")) << first.out;
  ExpectSameBits(Steps(job.run_dir()), want, 10);
}

TEST(Environments, ARealMpirun) {
  if (access("/usr/bin/mpirun", X_OK) != 0) GTEST_SKIP() << "no /usr/bin/mpirun (openmpi-bin)";
  Job job;
  job.RunDir("launch");
  ASSERT_EQ(job.Launch(2).code, 0);
  const std::vector<Json> want = Steps(job.run_dir());
  job.RunDir("mpirun");
  Strings arguments = {"--oversubscribe", "--bind-to", "none", "-np", "2", BinaryPath()};
  for (const std::string& flag : job.Flags()) arguments.push_back(flag);
  const Variables variables = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                               {"OMPI_MCA_plm", "isolated"},  // Needs neither ssh nor a network.
                               {"MASTER_PORT", std::to_string(FreePort())}};
  const Outcome outcome =
      Process(arguments, {variables, "", job.dir().path(), "/usr/bin/mpirun"}).Wait();
  EXPECT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_TRUE(Holds(outcome.out, "rank 0 of 2, local rank 0 of 2, from open mpi\n")) << outcome.out;
  ExpectSameBits(Steps(job.run_dir()), want, 10);
}

// torchrun's agent keeps MASTER_PORT for a store of its own: ours is on the port after it.
TEST(Environments, ARealTorchrun) {
  const char* const torchrun = std::getenv("FSDP_TORCHRUN");
  if (torchrun == nullptr) {
    GTEST_SKIP() << "FSDP_TORCHRUN does not name a torchrun (bazel test "
                    "--test_env=FSDP_TORCHRUN=/path/to/torchrun)";
  }
  Job job;
  constexpr size_t kSteps = 5;
  const auto quickstart = [&](const std::string& name, const Strings& more) {
    Strings settings = {"train.steps=" + std::to_string(kSteps), "schedule.warmup_steps=2",
                        "log.every=1", "run.threads=1", "run.dir=" + job.RunDir(name)};
    settings.insert(settings.end(), more.begin(), more.end());
    Strings flags = {"--config", "configs/quickstart.yaml"};
    for (const std::string& setting : settings) {
      flags.push_back("--set");
      flags.push_back(setting);
    }
    return flags;
  };
  Strings launch = {"launch", "--nproc-per-node", "2", "--"};
  for (const std::string& flag : quickstart("launch", {})) launch.push_back(flag);
  const Outcome launched = Call(launch);
  ASSERT_EQ(launched.code, 0) << launched.Text();
  const std::vector<Json> want = Steps(job.run_dir());
  for (const bool own_port : {false, true}) {
    Strings settings;
    if (own_port) settings = {"run.store_port=" + std::to_string(FreePort())};
    Strings arguments = {"--nproc-per-node", "2", "--no-python", "--master-addr", "127.0.0.1"};
    arguments.insert(arguments.end(), {"--master-port", std::to_string(FreePort()), BinaryPath()});
    for (const std::string& flag : quickstart(own_port ? "store_port" : "next_port", settings)) {
      arguments.push_back(flag);
    }
    const Outcome outcome =
        Process(arguments, {{{"HOME", job.dir().path()}}, "", job.dir().path(), torchrun}).Wait();
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    EXPECT_TRUE(Holds(outcome.out, "rank 0 of 2, local rank 0 of 2, from torchrun\n"))
        << outcome.out;
    ExpectSameBits(Steps(job.run_dir()), want, kSteps);
  }
}

TEST(Logs, EveryRankHasOne) {
  Job job;
  const Outcome outcome = job.Launch(3);
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  for (int rank = 0; rank < 3; ++rank) {
    const std::string name = std::to_string(rank);
    const std::string log = ReadFile(job.run_dir() + "/logs/rank_" + name + ".log");
    EXPECT_TRUE(Holds(log, "rank " + name + " of 3, by fsdp-train launch, process ")) << log;
    EXPECT_TRUE(Holds(log, "done at step 10\n")) << log;
  }
  // Rank 0's has what its console got.
  const std::string log = ReadFile(job.run_dir() + "/logs/rank_0.log");
  std::istringstream console(outcome.out);
  int lines = 0;
  for (std::string line; std::getline(console, line); ++lines) {
    ASSERT_EQ(line.find("[0] "), 0u) << line;
    EXPECT_TRUE(Holds(log, " I " + line.substr(4) + "\n")) << line;
  }
  EXPECT_GE(lines, 12);
}

}  // namespace
}  // namespace fsdp::e2e
