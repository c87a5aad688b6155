#include "trainer/launch/launch_command.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/launch/stray_word.h"

namespace fsdp {
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
void RefuseStrays(const std::vector<std::string>& strays, const std::vector<std::string>& argv) {
  std::string stray;
  if (!strays.empty()) {
    stray = strays[0];
  } else if (!argv.empty() && argv[0] != "eval" && !argv[0].starts_with("-")) {
    stray = argv[0];
  }
  if (const std::string meant = MeantBy(stray, "fsdp-train launch --"); !meant.empty()) {
    throw ConfigError("launch: " + stray + ": " + meant);
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
       "FSDP_TRAIN_SECRET; with one host, a random one"},
      {"--max-restarts", &options.max_restarts,
       "Times that all ranks are started again after one has failed", kShowsDefault},
      {"--log-dir", &options.log_dir, "Also write the output of each rank to DIR/rank_<r>.log"},
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
  command.take_strays = [launch, flags,
                         gpus = std::move(gpus)](const std::vector<std::string>& strays) {
    launch->options.grace = GraceOf(flags->grace_s);
    RefuseStrays(strays, launch->argv);
    launch->options.nproc_per_node = RanksOf(flags->ranks, gpus);
    CheckLaunchOptions(launch->options);
  };
  return command;
}

}  // namespace fsdp
