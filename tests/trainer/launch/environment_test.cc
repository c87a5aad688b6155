#include "trainer/launch/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment Read(const Variables& variables) {
  return ReadRankEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// The message of the ConfigError.
std::string Refusal(const Variables& variables) {
  try {
    Read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

Variables With(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    if (value == "-") {
      variables.erase(name);
    } else {
      variables[name] = value;
    }
  }
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "gpu07"},
                             {"MASTER_PORT", "29501"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                             {"TORCHELASTIC_MAX_RESTARTS", "3"}};

// A task of `srun` over two nodes, as slurmstepd sets it (the variables that matter here).
const Variables kSlurm = {{"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_TASK_PID", "991"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_NTASKS_PER_NODE", "3"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
                          {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "prterun-host-17@1"}};

TEST(EnvironmentTest, NoLauncherIsRankZeroOfOne) {
  const RankEnvironment it = Read({{"MASTER_ADDR", "gpu07"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(it.rank, 0);
  EXPECT_EQ(it.world_size, 1);
  EXPECT_EQ(it.local_world_size, 1);
  EXPECT_EQ(it.source, "none");
  EXPECT_EQ(StorePort(it, std::nullopt), 0);
  EXPECT_EQ(Describe(it), "rank 0 of 1, no launcher");
}

TEST(EnvironmentTest, Torchrun) {
  const RankEnvironment it = Read(kTorchrun);
  EXPECT_EQ(Describe(it), "rank 5 of 8, local rank 1 of 4, from torchrun");
  EXPECT_EQ(it.master_addr, "gpu07");
  EXPECT_EQ(it.master_port, 29501);
  EXPECT_EQ(it.job_id, "none");
  EXPECT_EQ(it.restart_count, 1);
  EXPECT_EQ(it.max_restarts, 3);
  EXPECT_FALSE(it.agent_store);
}

TEST(EnvironmentTest, OurOwnLauncher) {
  const Variables launch = {{"TORCHELASTIC_RUN_ID", "launch-1"}, {"FSDP_TRAIN_LAUNCH", "launch-1"}};
  EXPECT_EQ(Describe(Read(With(kTorchrun, launch))),
            "rank 5 of 8, local rank 1 of 4, by fsdp-train launch");
  const Variables one_host = {{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_PORT", "29501"}};
  EXPECT_EQ(Describe(Read(With(one_host, launch))), "rank 1 of 2, by fsdp-train launch");
  // A torchrun below it.
  const RankEnvironment it = Read(With(kTorchrun, {{"FSDP_TRAIN_LAUNCH", "launch-1"}}));
  EXPECT_EQ(it.source, "torchrun");
}

TEST(EnvironmentTest, TorchrunOfOneNeedsNoAddress) {
  const RankEnvironment it =
      Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  EXPECT_EQ(it.source, "torchrun");
  EXPECT_EQ(it.master_port, 0);
}

TEST(EnvironmentTest, EndOfSlurmsJob) {
  const auto read = [](const char* text) {
    return ReadJobEndTime([text](const char*) { return text; });
  };
  EXPECT_EQ(read("1795933752"), 1795933752);
  EXPECT_EQ(read(nullptr), std::nullopt);
  EXPECT_EQ(read(""), std::nullopt);
  for (const std::string wrong : {"0", "-5", "17x", "1.5", " 17", "99999999999", "2026-11-29"}) {
    try {
      read(wrong.c_str());
      ADD_FAILURE() << wrong;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(), "SLURM_JOB_END_TIME=" + wrong +
                                  ": want seconds since 1970; unset it to train without its limit");
    }
  }
}

TEST(EnvironmentTest, StorePort) {
  RankEnvironment it = Read(kTorchrun);
  EXPECT_EQ(StorePort(it, std::nullopt), 29501);
  EXPECT_EQ(StorePort(it, 31000), 31000);
  it = Read(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_TRUE(it.agent_store);
  EXPECT_EQ(StorePort(it, std::nullopt), 29502);
  EXPECT_EQ(StorePort(it, 31000), 31000);
  it.master_port = 65535;
  EXPECT_THROW(StorePort(it, std::nullopt), ConfigError);
  EXPECT_FALSE(Read(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST(EnvironmentTest, SlurmStepOverTwoNodes) {
  const RankEnvironment it = Read(kSlurm);
  EXPECT_EQ(Describe(it), "rank 3 of 5, local rank 0 of 2, from slurm");
  EXPECT_EQ(it.master_addr, "gpu07");
  EXPECT_EQ(it.job_id, "4711.0");
  // No port is given: any will do, if all ranks of the step take the same.
  EXPECT_GE(it.master_port, 1024);
  EXPECT_LT(it.master_port, 32768);
  const RankEnvironment other =
      Read(With(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_TASK_PID", "17"}}));
  EXPECT_EQ(other.master_port, it.master_port);
  EXPECT_EQ(other.local_world_size, 3);
  EXPECT_NE(Read(With(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port, it.master_port);
  EXPECT_EQ(Read(With(kSlurm, {{"MASTER_PORT", "29500"}, {"MASTER_ADDR", "login"}})).master_addr,
            "login");
}

TEST(EnvironmentTest, SlurmStepOfOneTaskInALargerAllocationIsOneRank) {
  const RankEnvironment it = Read(With(kSlurm, {{"SLURM_PROCID", "0"},
                                                {"SLURM_NODEID", "0"},
                                                {"SLURM_NTASKS", "5"},
                                                {"SLURM_NTASKS_PER_NODE", "4"},
                                                {"SLURM_STEP_NUM_TASKS", "1"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
  EXPECT_EQ(Describe(it), "rank 0 of 1, local rank 0 of 1, from slurm");
  EXPECT_EQ(it.master_addr, "127.0.0.1");
}

TEST(EnvironmentTest, SlurmAllocationsShellAndBatchScriptAreNoRanks) {
  // salloc with a shell on the login node.
  EXPECT_EQ(Read({{"SLURM_JOB_ID", "4711"}, {"SLURM_NTASKS", "4"}}).source, "none");
  // salloc with an interactive step, and a batch step that has a number.
  for (const char* special : {"4294967290", "4294967291", "interactive"}) {
    EXPECT_EQ(Read(With(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", special}})).source,
              "none");
  }
  // An sbatch script that runs the program without srun.
  EXPECT_EQ(Read({{"SLURM_JOB_ID", "4711"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_LOCALID", "0"},
                  {"SLURM_NODEID", "0"},
                  {"SLURM_NTASKS", "4"},
                  {"SLURM_TASK_PID", "991"}})
                .source,
            "none");
}

TEST(EnvironmentTest, SlurmWithTheDocumentedVariablesAlone) {
  const Variables variables = {
      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}};
  EXPECT_EQ(Describe(Read(variables)), "rank 1 of 2, local rank 1 of 2, from slurm");
  EXPECT_EQ(Describe(Read(With(variables, {{"SLURM_NNODES", "2"},
                                           {"SLURM_LOCALID", "0"},
                                           {"SLURM_NTASKS_PER_NODE", "1"},
                                           {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}}))),
            "rank 1 of 2, local rank 0 of 1, from slurm");
}

TEST(EnvironmentTest, SlurmTasksPerNode) {
  const auto local_world = [](const char* list, const char* node) {
    return Read(With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", list},
                              {"SLURM_NODEID", node},
                              {"SLURM_STEP_NUM_TASKS", "20"}}))
        .local_world_size;
  };
  EXPECT_EQ(local_world("4(x3),2", "0"), 4);
  EXPECT_EQ(local_world("4(x3),2", "2"), 4);
  EXPECT_EQ(local_world("4(x3),2", "3"), 2);
  EXPECT_EQ(local_world("1,7(x2)", "1"), 7);
  for (const char* wrong : {"4(x3),2", "", "four", "4(x", "4(xa)", "0", "2,"}) {
    const std::string refusal =
        Refusal(With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", wrong}, {"SLURM_NODEID", "4"}}));
    EXPECT_EQ(refusal.find(std::string("SLURM_STEP_TASKS_PER_NODE=") + wrong), 0u) << refusal;
  }
}

TEST(EnvironmentTest, FirstHost) {
  EXPECT_EQ(FirstHost("gpu07"), "gpu07");
  EXPECT_EQ(FirstHost("gpu07,gpu08"), "gpu07");
  EXPECT_EQ(FirstHost("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(FirstHost("gpu[12,07]"), "gpu12");
  EXPECT_EQ(FirstHost("rack[1-2]-node[03-04].example.org,x"), "rack1-node03.example.org");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(EnvironmentTest, OpenMpi) {
  const RankEnvironment it = Read(kOpenMpi);
  EXPECT_EQ(Describe(it), "rank 1 of 2, local rank 1 of 2, from open mpi");
  EXPECT_EQ(it.master_addr, "127.0.0.1");
  EXPECT_EQ(it.job_id, "prterun-host-17@1");
  EXPECT_EQ(Read(With(kOpenMpi, {{"PMIX_NAMESPACE", "-"}})).master_port, 29500);
}

TEST(EnvironmentTest, TorchrunComesBeforeSlurmBeforeOpenMpi) {
  EXPECT_EQ(Read(With(With(kTorchrun, kSlurm), kOpenMpi)).source, "torchrun");
  const Variables agree = {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "5"}};
  EXPECT_EQ(
      Read(With(With(kSlurm, kOpenMpi), With(agree, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))).source,
      "slurm");
  // mpirun's daemon is the step's task; ranks that took its variables for theirs would all be it.
  const std::string refusal = Refusal(With(kSlurm, kOpenMpi));
  EXPECT_NE(refusal.find("SLURM_PROCID=3 of 5"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("OMPI_COMM_WORLD_RANK=1 of 2"), std::string::npos) << refusal;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) {  // One suffices.
    const std::string other = Refusal(With(With(kSlurm, kOpenMpi), With(agree, {{name, "4"}})));
    EXPECT_NE(other.find("contradict each other"), std::string::npos) << name << ": " << other;
  }
}

TEST(EnvironmentTest, HalfSetVariablesAreNamed) {
  for (const Variables& all : {kTorchrun, kSlurm, kOpenMpi}) {
    for (const auto& [name, value] : all) {
      const bool needed = name == "RANK" || name == "WORLD_SIZE" || name == "LOCAL_RANK" ||
                          name == "LOCAL_WORLD_SIZE" || name.rfind("MASTER_", 0) == 0 ||
                          name == "SLURM_LOCALID" || name.rfind("OMPI_", 0) == 0;
      const std::string refusal = Refusal(With(all, {{name, "-"}}));
      if (needed) {
        EXPECT_EQ(refusal.find(name + " is not set"), 0u) << refusal;
      } else {
        EXPECT_EQ(refusal, "accepted") << name;
      }
    }
  }
}

struct Mistake {
  Variables all;
  const char* name;
  const char* value;
  const char* why;
};

TEST(EnvironmentTest, ContradictionsAreNamedWithValueAndCure) {
  const Mistake mistakes[] = {
      {kTorchrun, "RANK", "8", "not below the number of ranks, WORLD_SIZE=8"},
      {kTorchrun, "RANK", "-1", "below 0"},
      {kTorchrun, "RANK", "one", "not a whole number"},
      {kTorchrun, "RANK", "", "not a whole number"},
      {kTorchrun, "RANK", "1 ", "not a whole number"},
      {kTorchrun, "RANK", "0x1", "not a whole number"},
      {kTorchrun, "WORLD_SIZE", "0", "below 1"},
      {kTorchrun, "WORLD_SIZE", "99999999999", "above"},
      {kTorchrun, "WORLD_SIZE", "1048577", "above 1048576"},
      {kTorchrun, "LOCAL_RANK", "4", "not below the number of ranks of this host, 4"},
      {kTorchrun, "LOCAL_WORLD_SIZE", "9", "more than all ranks"},
      {With(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}}), "LOCAL_RANK", "1", "not the rank, RANK=5"},
      {kTorchrun, "MASTER_PORT", "0", "below 1"},
      {kTorchrun, "MASTER_PORT", "65536", "above 65535"},
      {kTorchrun, "MASTER_ADDR", "", "is empty"},
      {kSlurm, "SLURM_PROCID", "5", "not below the number of ranks, SLURM_STEP_NUM_TASKS=5"},
      {kSlurm, "SLURM_LOCALID", "2", "not below the number of ranks of this host, 2"},
      {kOpenMpi, "OMPI_COMM_WORLD_RANK", "2", "not below the number of ranks"},
      {kOpenMpi, "OMPI_COMM_WORLD_SIZE", "x", "not a whole number"},
  };
  for (const Mistake& mistake : mistakes) {
    const std::string refusal = Refusal(With(mistake.all, {{mistake.name, mistake.value}}));
    EXPECT_EQ(refusal.find(std::string(mistake.name) + "=" + mistake.value + " ("), 0u) << refusal;
    EXPECT_NE(refusal.find(mistake.why), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("to train as one process"), std::string::npos) << refusal;
  }
}

TEST(EnvironmentTest, AnIpv6AddressMayHaveBrackets) {
  for (const Variables& launcher : {kTorchrun, kSlurm, kOpenMpi}) {
    for (const char* address : {"[fe80::1%eth0]", "fe80::1%eth0"}) {
      EXPECT_EQ(Read(With(launcher, {{"MASTER_ADDR", address}})).master_addr, "fe80::1%eth0");
    }
  }
}

}  // namespace
}  // namespace fsdp
