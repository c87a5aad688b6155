#include "trainer/launch/launch_command.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/launch/environment.h"

namespace fsdp {
namespace {

constexpr int kMaxRanks = 4096;  // A host's.
constexpr int kMaxNodes = 4096;

}  // namespace

std::optional<Endpoint> ParseEndpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of("[]:") != std::string_view::npos) {
    return std::nullopt;  // Where an address ends and the port begins is anybody's guess.
  }
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || error != std::errc() || end != digits.data() + digits.size() || port < 1 ||
      port > 65535) {
    return std::nullopt;
  }
  return Endpoint{std::string(host), port};
}

void CheckLaunchOptions(const LaunchOptions& options) {
  std::string mistakes;
  const auto refuse = [&](const std::string& mistake) {
    mistakes += (mistakes.empty() ? "" : "\n") + mistake;
  };
  if (options.nnodes < 1) {
    refuse("--nnodes " + std::to_string(options.nnodes) + ": want at least 1");
  } else if (options.nnodes > kMaxNodes) {
    refuse("--nnodes " + std::to_string(options.nnodes) + ": want at most " +
           std::to_string(kMaxNodes));
  } else if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    refuse("--node-rank " + std::to_string(options.node_rank) + ": want " +
           (options.nnodes == 1 ? "0 with one node"
                                : "0 to " + std::to_string(options.nnodes - 1) + " with --nnodes " +
                                      std::to_string(options.nnodes)));
  }
  if (options.nnodes > 1 && options.rdzv_endpoint.empty()) {
    refuse("--rdzv-endpoint: --nnodes " + std::to_string(options.nnodes) +
           " needs it, on every host the same: HOST:PORT of the host of node rank 0");
  }
  if (options.nproc_per_node < 1 || options.nproc_per_node > kMaxRanks) {
    refuse("--nproc-per-node " + std::to_string(options.nproc_per_node) + ": want 1 to " +
           std::to_string(kMaxRanks));
  }
  const int64_t ranks = int64_t{options.nnodes} * options.nproc_per_node;
  if (mistakes.empty() && ranks > kMostRanks) {
    refuse("--nnodes " + std::to_string(options.nnodes) + " of --nproc-per-node " +
           std::to_string(options.nproc_per_node) + " are " + std::to_string(ranks) +
           " ranks: want at most " + std::to_string(kMostRanks));
  }
  if (options.max_restarts < 0) {
    refuse("--max-restarts " + std::to_string(options.max_restarts) + ": want 0 or more");
  }
  if (!options.rdzv_endpoint.empty() && !ParseEndpoint(options.rdzv_endpoint)) {
    refuse("--rdzv-endpoint " + options.rdzv_endpoint +
           ": want HOST:PORT with a port of 1 to 65535, such as node-1:29500 or [::1]:29500");
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
}

namespace {

// As the command line has them.
struct Flags {
  std::string ranks;
  double grace_s;
};

int RanksOf(const std::string& number, const std::function<int()>& gpus) {
  if (number == "auto") return std::max(gpus(), 1);
  int ranks = 0;
  const char* const end = number.data() + number.size();
  if (const auto read = std::from_chars(number.data(), end, ranks);
      read.ec != std::errc() || read.ptr != end) {
    throw ConfigError("--nproc-per-node " + number + ": want a number or `auto`");
  }
  return ranks;
}

std::chrono::milliseconds GraceOf(double seconds) {
  if (!(seconds >= 0 && seconds <= 1e6)) throw ConfigError("--grace: want seconds, 0 to 1000000");
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

// Throws for a word before the `--` that nobody reads. `strays`: flags, and values of flags, that
// are not launch's. Other words before the `--` are in `argv`.
void RefuseStrays(const Command& launch, const std::vector<std::string>& strays,
                  const std::vector<std::string>& argv) {
  std::string stray;
  if (!strays.empty()) {
    stray = strays[0];
  } else if (!argv.empty() && argv[0] != "eval" && !argv[0].starts_with("-")) {
    stray = argv[0];
  }
  if (const std::string meant = MeantBy(stray, "fsdp-train launch --"); !meant.empty()) {
    throw ConfigError("launch: " + stray + ": " + meant);
  }
  if (const std::string hint = HintForStray(launch, stray); !hint.empty()) {
    throw ConfigError("launch: " + stray + ": " + hint);
  }
  if (!stray.empty()) {
    throw ConfigError("launch: " + stray +
                      " is not an option of launch; the flags of the training run come after "
                      "`--`: fsdp-train launch --nproc-per-node 2 -- --config FILE");
  }
}

}  // namespace

Command MakeLaunchCommand(LaunchCommand* launch, std::function<int()> gpus) {
  LaunchOptions& options = launch->options;
  const auto flags =
      std::make_shared<Flags>(Flags{std::to_string(options.nproc_per_node),
                                    std::chrono::duration<double>(options.grace).count()});
  Command command{"launch", "Start the ranks of one host and watch them"};
  command.flags = {
      {"--nnodes", &options.nnodes, "Hosts; each runs its own launch", kShowsDefault},
      {"--nproc-per-node", &flags->ranks,
       "Ranks on this host, the same number on all; auto: one for each of its GPUs, or one",
       FlagRules{.value = "INT|auto", .shows_default = true}},
      {"--node-rank", &options.node_rank, "Number of this host, from 0", kShowsDefault},
      {"--rdzv-endpoint", &options.rdzv_endpoint,
       "HOST:PORT where the ranks meet, on the host of node rank 0. Default with one host: a free "
       "port"},
      {"--rdzv-id", &options.rdzv_id, "The job's name, the same on all hosts"},
      {"--rdzv-secret-file", &options.secret_file,
       "File with the secret that lets ranks into the job, the same on all hosts. Default: "
       "FSDP_TRAIN_SECRET; with one host, a random one",
       FlagRules{.value = "FILE"}},
      {"--max-restarts", &options.max_restarts,
       "Times that all ranks are started again after one has failed", kShowsDefault},
      {"--log-dir", &options.log_dir, "Also write the output of each rank to DIR/rank_<r>.log",
       FlagRules{.value = "DIR"}},
      {"--grace", &flags->grace_s,
       "Seconds for the other ranks to end by themselves after one has failed", kShowsDefault},
      {"flags", &launch->argv, "After `--`: the flags of a training run, or `eval` and its flags",
       FlagRules{.value = ""}},
  };
  command.footer =
      "Examples: fsdp-train launch --nproc-per-node 2 -- --config FILE\n"
      "On each of two hosts, R being 0 on node-1 and 1 on the other:\n"
      "  fsdp-train launch --nnodes 2 --nproc-per-node 2 --node-rank R \\\n"
      "    --rdzv-endpoint node-1:29500 --rdzv-secret-file FILE -- --config FILE";
  command.take_strays = [launch, flags, known = command,
                         gpus = std::move(gpus)](const std::vector<std::string>& strays) {
    launch->options.grace = GraceOf(flags->grace_s);
    RefuseStrays(known, strays, launch->argv);
    launch->options.nproc_per_node = RanksOf(flags->ranks, gpus);
    CheckLaunchOptions(launch->options);
  };
  return command;
}

std::string MeantBy(const std::string& word, const std::string& command) {
  if (word.starts_with("-")) return "";
  if (word.ends_with(".yaml") || word.ends_with(".yml")) {
    return "a recipe is named by --config: " + command + " --config " + ShellWord(word);
  }
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return "";
  for (const char c : word.substr(0, equals)) {
    if (!std::islower(static_cast<unsigned char>(c)) &&
        !std::isdigit(static_cast<unsigned char>(c)) && c != '_' && c != '.') {
      return "";
    }
  }
  return "a key is set by --set: " + command + " --set " + ShellWord(word);
}

}  // namespace fsdp
