// This process's place among the ranks of a job, by the variables that its launcher left in the
// environment.
//
// The first of these that is there, and `source` says which:
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and what
//             torchrun adds: TORCHELASTIC_*. Our own `launch` sets the same, and says that it is.
//   slurm     a task of an srun step: SLURM_PROCID and the SLURM_STEP_* of that step. A batch
//             script has SLURM_PROCID=0 too, and an allocation's shell SLURM_NTASKS: neither is a
//             rank.
//   open mpi  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE.
//   none      rank 0 of 1.
// Slurm and Open MPI name no port: MASTER_PORT, else one computed from the job's name, the same on
// every rank.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_ENVIRONMENT_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace fsdp {

struct RankEnvironment {
  int rank = 0;  // In [0, world_size).
  int world_size = 1;
  int local_rank = 0;  // In [0, local_world_size): which of the host's ranks, and of its devices.
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";  // Where rank 0 is: name or address, without brackets.
  int master_port = 0;                    // 0: a world of one that needs none.
  // "fsdp-train launch", "torchrun", "slurm", "open mpi" or "none".
  std::string source = "none";
  bool agent_store = false;  // The launcher's own store listens on master_port: see StorePort.
  int restart_count = 0;     // How often this launch has started all ranks again so far ...
  int max_restarts = 0;      // ... and how often it may.
  std::string job_id;        // The launcher's name of the job; may be empty, need not be unique.
};

// The name that `launch` gives the start that a rank belongs to: TORCHELASTIC_RUN_ID once more, so
// that a torchrun started below `launch` is not taken for it.
inline constexpr char kLaunchVariable[] = "FSDP_TRAIN_LAUNCH";

// The most ranks of a job, however they are started: some memory goes by their number.
inline constexpr int kMostRanks = 1 << 20;

// Like getenv: null where there is no such variable.
using Getenv = std::function<const char*(const char*)>;

// Throws ConfigError, naming the variable, its value and the cure, where the variables of the
// launcher that is there are incomplete, no numbers, or contradict each other.
RankEnvironment ReadRankEnvironment(const Getenv& get = [](const char* name) -> const char* {
  return std::getenv(name);
});

// SLURM_JOB_END_TIME, seconds since 1970, when Slurm ends the job; empty where it is not set.
// Throws ConfigError, naming the variable, its value and the cure, where it is no such number.
std::optional<int64_t> ReadJobEndTime(const Getenv& get = [](const char* name) -> const char* {
  return std::getenv(name);
});

// The port of the job's store on master_addr: `store_port` (run.store_port) where given, else
// master_port, else, where a torchrun agent owns that, the one after it. 0: a world of one.
int StorePort(const RankEnvironment& environment, std::optional<int> store_port);

// For the log: "rank 1 of 4, local rank 1 of 4, from torchrun"; "rank 1 of 4, by fsdp-train
// launch", with the local rank where there are several hosts.
std::string Describe(const RankEnvironment& environment);

// The first host of a Slurm host list: "gpu[07-09,12]-ib[0-1],login" gives "gpu07-ib0".
std::string FirstHost(const std::string& nodelist);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_ENVIRONMENT_H_
