#include "trainer/launch/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string_view>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxPort = 65535;
constexpr int64_t kFirstSpecialStep = 0xfffffff0;  // Slurm's batch, interactive, extern, ... steps.

template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

constexpr int64_t kMaxEndTime = int64_t{1} << 33;  // The year 2242.

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// One launcher's variables: where they are wrong, its name and its cure complete the message.
class Variables {
 public:
  Variables(const Getenv& get, const char* source, const char* cure)
      : get_(get), source_(source), cure_(cure) {}

  bool Has(const char* name) const { return get_(name) != nullptr; }
  std::string Text(const char* name, const std::string& otherwise = "") const {
    const char* value = get_(name);
    return value == nullptr ? otherwise : value;
  }

  // [min, max]. `otherwise` where unset; without it, unset is an error.
  int Integer(const char* name, int min, int max, std::optional<int> otherwise = {}) const {
    if (!Has(name)) {
      if (otherwise) return *otherwise;
      throw ConfigError(
          Concat(name, " is not set, though others of ", source_, "'s variables are: ", cure_));
    }
    const std::optional<int64_t> value = ParseInteger(Text(name));
    if (!value) Refuse(name, "is not a whole number");
    if (*value < min) Refuse(name, "is below " + std::to_string(min));
    if (*value > max) Refuse(name, "is above " + std::to_string(max));
    return static_cast<int>(*value);
  }

  [[noreturn]] void Refuse(const char* name, const std::string& why) const {
    throw ConfigError(Concat(name, "=", Text(name), " (", source_, ") ", why, ": ", cure_));
  }

 private:
  const Getenv& get_;
  const char* source_;
  const char* cure_;
};

struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

void CheckConsistent(const Variables& variables, const RankEnvironment& it, const Names& names) {
  if (it.rank >= it.world_size) {
    variables.Refuse(names.rank, Concat("is not below the number of ranks, ", names.world_size, "=",
                                        it.world_size));
  }
  if (it.local_world_size > it.world_size) {
    variables.Refuse(names.local_world_size,
                     Concat("is more than all ranks, ", names.world_size, "=", it.world_size));
  }
  if (it.local_rank >= it.local_world_size) {
    variables.Refuse(names.local_rank, Concat("is not below the number of ranks of this host, ",
                                              it.local_world_size));
  }
  if (it.local_world_size == it.world_size && it.local_rank != it.rank) {
    variables.Refuse(names.local_rank, Concat("is not the rank, ", names.rank, "=", it.rank,
                                              ", though all ranks are on this host"));
  }
}

// Ranks that were given no port agree on one without talking: FNV-1a of the job's name, into the
// ports between what services register and where Linux's ephemeral range begins (32768).
int PortOfJob(const std::string& job_id) {
  if (job_id.empty()) return 29500;  // torchrun's default.
  uint32_t hash = 2166136261u;
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 12000);
}

RankEnvironment FromTorchrun(const Getenv& get) {
  const Variables variables(
      get, "torchrun",
      "start the ranks with `fsdp-train launch` or torchrun, or unset RANK, WORLD_SIZE, LOCAL_RANK "
      "and LOCAL_WORLD_SIZE to train as one process");
  RankEnvironment it;
  it.source = "torchrun";
  it.rank = variables.Integer("RANK", 0, kMaxInt);
  it.world_size = variables.Integer("WORLD_SIZE", 1, kMostRanks);
  it.local_rank = variables.Integer("LOCAL_RANK", 0, kMaxInt);
  it.local_world_size = variables.Integer("LOCAL_WORLD_SIZE", 1, kMaxInt);
  CheckConsistent(variables, it, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (it.world_size > 1 || variables.Has("MASTER_PORT")) {
    it.master_port = variables.Integer("MASTER_PORT", 1, kMaxPort);
  }
  if (variables.Has("MASTER_ADDR")) it.master_addr = variables.Text("MASTER_ADDR");
  if (it.master_addr.empty()) variables.Refuse("MASTER_ADDR", "is empty");
  if (it.local_world_size < it.world_size && !variables.Has("MASTER_ADDR")) {
    throw ConfigError(
        "MASTER_ADDR is not set, though the ranks are on several hosts: set it to "
        "the host of rank 0");
  }
  // torchrun writes Python's str(bool), and PyTorch compares with "True" alone.
  it.agent_store = variables.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  it.restart_count = variables.Integer("TORCHELASTIC_RESTART_COUNT", 0, kMaxInt, 0);
  it.max_restarts = variables.Integer("TORCHELASTIC_MAX_RESTARTS", 0, kMaxInt, 0);
  it.job_id = variables.Text("TORCHELASTIC_RUN_ID");
  if (!it.job_id.empty() && variables.Text(kLaunchVariable) == it.job_id) {
    it.source = "fsdp-train launch";
  }
  return it;
}

// SLURM_PROCID=0 is set in batch scripts as well: they are task 0 of a step without SLURM_STEP_ID.
// The shell of an interactive allocation is task 0 of a step with a special number.
bool InSlurmStep(const Getenv& get) {
  if (get("SLURM_PROCID") == nullptr) return false;
  if (const char* step = get("SLURM_STEP_ID")) {
    const std::optional<int64_t> number = ParseInteger(step);
    return number && *number < kFirstSpecialStep;
  }
  return get("SLURM_STEP_NUM_TASKS") != nullptr || get("SLURM_TASK_PID") == nullptr;
}

// Entry `node` of Slurm's run-length list: "2(x3),1" is 2, 2, 2, 1.
std::optional<int> TasksOfNode(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const size_t open = entry.find("(x");
    const std::optional<int64_t> tasks = ParseInteger(entry.substr(0, open));
    std::optional<int64_t> repeat = 1;
    if (open != std::string_view::npos) {
      if (entry.back() != ')') return std::nullopt;
      repeat = ParseInteger(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!tasks || *tasks < 1 || *tasks > kMaxInt || !repeat || *repeat < 1) return std::nullopt;
    if (node < *repeat) return static_cast<int>(*tasks);
    node -= static_cast<int>(std::min<int64_t>(*repeat, kMaxInt));
  }
  return std::nullopt;
}

RankEnvironment FromSlurm(const Getenv& get) {
  const Variables variables(get, "slurm",
                            "start the ranks with srun, or unset SLURM_PROCID to train as one "
                            "process");
  RankEnvironment it;
  it.source = "slurm";
  it.rank = variables.Integer("SLURM_PROCID", 0, kMaxInt);
  // The step's own number first: SLURM_NTASKS may be the allocation's.
  const char* tasks =
      variables.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  it.world_size = variables.Integer(tasks, 1, kMostRanks);
  it.local_rank = variables.Integer("SLURM_LOCALID", 0, kMaxInt);

  const char* per_node = "SLURM_STEP_TASKS_PER_NODE";
  if (variables.Has(per_node)) {
    const int node = variables.Integer("SLURM_NODEID", 0, kMaxInt, 0);
    const std::optional<int> here = TasksOfNode(variables.Text(per_node), node);
    if (!here) {
      variables.Refuse(per_node,
                       Concat("does not say how many tasks node ", node, " (SLURM_NODEID) has"));
    }
    it.local_world_size = *here;
  } else {
    const int nodes = variables.Integer("SLURM_STEP_NUM_NODES", 1, kMaxInt,
                                        variables.Integer("SLURM_NNODES", 1, kMaxInt, 1));
    per_node = "SLURM_NTASKS_PER_NODE";  // The allocation's; a step may be smaller.
    it.local_world_size = nodes == 1
                              ? it.world_size
                              : std::min(variables.Integer(per_node, 1, kMaxInt), it.world_size);
  }
  CheckConsistent(variables, it, {"SLURM_PROCID", tasks, "SLURM_LOCALID", per_node});

  it.job_id = variables.Text("SLURM_JOB_ID", variables.Text("SLURM_JOBID"));
  if (variables.Has("SLURM_STEP_ID")) it.job_id.append(".").append(variables.Text("SLURM_STEP_ID"));
  if (!variables.Text("MASTER_ADDR").empty()) {
    it.master_addr = variables.Text("MASTER_ADDR");
  } else if (it.local_world_size < it.world_size) {
    // The launch node is where srun ran: right for a job that starts srun on its first node.
    it.master_addr = FirstHost(variables.Text("SLURM_STEP_NODELIST"));
    if (it.master_addr.empty()) it.master_addr = variables.Text("SLURM_LAUNCH_NODE_IPADDR");
    if (it.master_addr.empty()) {
      throw ConfigError(
          "SLURM_STEP_NODELIST is not set, though the ranks are on several hosts: "
          "start them with srun, or set MASTER_ADDR to the host of rank 0");
    }
  }
  it.master_port = variables.Integer("MASTER_PORT", 1, kMaxPort, PortOfJob(it.job_id));
  return it;
}

constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

Variables OpenMpiVariables(const Getenv& get) {
  return Variables(get, "open mpi",
                   "start the ranks with mpirun, or unset OMPI_COMM_WORLD_RANK and "
                   "OMPI_COMM_WORLD_SIZE to train as one process");
}

RankEnvironment FromOpenMpi(const Getenv& get) {
  const Variables variables = OpenMpiVariables(get);
  RankEnvironment it;
  it.source = "open mpi";
  it.rank = variables.Integer(kOpenMpi.rank, 0, kMaxInt);
  it.world_size = variables.Integer(kOpenMpi.world_size, 1, kMostRanks);
  it.local_rank = variables.Integer(kOpenMpi.local_rank, 0, kMaxInt);
  it.local_world_size = variables.Integer(kOpenMpi.local_world_size, 1, kMaxInt);
  CheckConsistent(variables, it, kOpenMpi);
  it.job_id = variables.Text("PMIX_NAMESPACE", variables.Text("OMPI_MCA_ess_base_jobid"));
  if (!variables.Text("MASTER_ADDR").empty()) {
    it.master_addr = variables.Text("MASTER_ADDR");
  } else if (it.local_world_size < it.world_size) {
    throw ConfigError(
        "MASTER_ADDR is not set, though the ranks are on several hosts (open mpi): "
        "set it to the host of rank 0, `mpirun -x MASTER_ADDR=...`");
  }
  it.master_port = variables.Integer("MASTER_PORT", 1, kMaxPort, PortOfJob(it.job_id));
  return it;
}

RankEnvironment ReadAny(const Getenv& get) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (get(name) != nullptr) return FromTorchrun(get);
  }
  const bool open_mpi =
      get("OMPI_COMM_WORLD_RANK") != nullptr || get("OMPI_COMM_WORLD_SIZE") != nullptr;
  if (InSlurmStep(get)) {
    RankEnvironment it = FromSlurm(get);
    if (open_mpi) {
      // mpirun starts its daemons as a step, one task a host, and its ranks inherit that task's
      // variables: taken for ranks, several would be the same one.
      const Variables variables = OpenMpiVariables(get);
      const int rank = variables.Integer(kOpenMpi.rank, 0, kMaxInt);
      const int world_size = variables.Integer(kOpenMpi.world_size, 1, kMaxInt);
      if (rank != it.rank || world_size != it.world_size) {
        throw ConfigError(Concat("SLURM_PROCID=", it.rank, " of ", it.world_size,
                                 " and OMPI_COMM_WORLD_RANK=", rank, " of ", world_size,
                                 " contradict each other: where mpirun started the ranks, unset "
                                 "SLURM_PROCID for them (`env -u SLURM_PROCID fsdp-train ...`)"));
      }
    }
    return it;
  }
  if (open_mpi) return FromOpenMpi(get);
  return RankEnvironment();
}

}  // namespace

RankEnvironment ReadRankEnvironment(const Getenv& get) {
  RankEnvironment it = ReadAny(get);
  // An IPv6 address as it stands in front of a port.
  std::string& host = it.master_addr;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return it;
}

std::optional<int64_t> ReadJobEndTime(const Getenv& get) {
  const char* const text = get("SLURM_JOB_END_TIME");
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::optional<int64_t> seconds = ParseInteger(text);
  if (!seconds || *seconds < 1 || *seconds > kMaxEndTime) {
    throw ConfigError(Concat("SLURM_JOB_END_TIME=", text,
                             ": want seconds since 1970; unset it to train without its limit"));
  }
  return seconds;
}

int StorePort(const RankEnvironment& environment, std::optional<int> store_port) {
  if (store_port) return *store_port;
  if (!environment.agent_store || environment.master_port == 0) return environment.master_port;
  if (environment.master_port == kMaxPort) {
    throw ConfigError(
        "MASTER_PORT=65535 belongs to torchrun's agent and no port comes after it "
        "for the store: set run.store_port");
  }
  return environment.master_port + 1;
}

std::string Describe(const RankEnvironment& environment) {
  const std::string rank =
      "rank " + std::to_string(environment.rank) + " of " + std::to_string(environment.world_size);
  if (environment.source == "none") return rank + ", no launcher";
  if (environment.source == "fsdp-train launch") {
    if (environment.local_world_size == environment.world_size) {
      return rank + ", by fsdp-train launch";
    }
    return Concat(rank, ", local rank ", environment.local_rank, " of ",
                  environment.local_world_size, ", by fsdp-train launch");
  }
  return Concat(rank, ", local rank ", environment.local_rank, " of ", environment.local_world_size,
                ", from ", environment.source);
}

std::string FirstHost(const std::string& nodelist) {
  std::string host;
  bool inside = false;  // Inside brackets.
  bool taken = false;   // The first value of these brackets is complete.
  for (const char c : nodelist) {
    if (c == '[') {
      inside = true;
      taken = false;
    } else if (c == ']') {
      inside = false;
    } else if (inside) {
      taken = taken || c == '-' || c == ',';
      if (!taken) host += c;
    } else if (c == ',') {
      break;
    } else {
      host += c;
    }
  }
  return host;
}

}  // namespace fsdp
