// The command line of `fsdp-train launch`, and the likely meaning of a word without a flag.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/command_line.h"

namespace fsdp {

// The options of `fsdp-train launch`.
struct LaunchOptions {
  int nnodes = 1;          // Hosts, each with a launcher that has the same of this and the next.
  int nproc_per_node = 1;  // The world is nnodes * nproc_per_node ranks ...
  int node_rank = 0;       // ... and this host's begin with FirstRank().
  int FirstRank() const { return node_rank * nproc_per_node; }
  // HOST:PORT of the store, on the host of node rank 0; empty, on one host: 127.0.0.1 and a free
  // port.
  std::string rdzv_endpoint;
  std::string rdzv_id;      // The job's name. Empty: made of the endpoint, or of this process.
  std::string secret_file;  // Holds the job's secret (job_secret.h); empty: see Launch().
  int max_restarts = 0;
  std::string log_dir;  // Empty: none. Otherwise made, and rank_<r>.log in it appended to.

  // How long after the first failure the other ranks may take to end by themselves (they usually
  // do, with exit code 6 and a message), and then after SIGTERM, before SIGKILL.
  std::chrono::milliseconds grace{10000};
  std::chrono::milliseconds grace_after_sigterm{5000};
  // A signal that comes again within this time is the same one.
  std::chrono::milliseconds repeat{5000};
  std::string program = "/proc/self/exe";  // A rank's: this very build, even if replaced.

  // Exit code 75 may be a run's that has used up its time: another start would have none.
  bool has_time_limit = false;

  // Says where a run goes on from, at the end of one that has failed and may be started again.
  // Null: nothing is said.
  std::function<std::string()> how_to_go_on;

  std::string memory_root;  // MemoryLimits' root, for tests.
};

// Throws ConfigError with all mistakes, one a line.
void CheckLaunchOptions(const LaunchOptions& options);

struct Endpoint {
  std::string host;
  int port;
};
// HOST:PORT, an IPv6 address in brackets; nullopt for anything else.
std::optional<Endpoint> ParseEndpoint(std::string_view text);

struct LaunchCommand {
  LaunchOptions options;
  std::vector<std::string> argv;  // After `--`: a training run's flags, or `eval` and its own.
};

// The sub-command without its `run`, which calls Launch(launch->options, launch->argv). Reading the
// command line fills `launch`, and throws ConfigError for options out of range and for flags of a
// training run before the `--`.
//   gpus  How many this host has: `--nproc-per-node auto` is that many ranks, and one where it has
//         none, which computes on all cores.
Command MakeLaunchCommand(LaunchCommand* launch, std::function<int()> gpus);

// "a recipe is named by --config: fsdp-train --config tiny.yaml" for "tiny.yaml"; the like about
// --set for "optimizer.lr=3"; empty for any other word. `command`: how the line begins,
// "fsdp-train".
std::string MeantBy(const std::string& word, const std::string& command);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
