#include "trainer/launch/launch_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/launch/stray_word.h"

namespace fsdp {

CLI::App* AddLaunchCommand(CLI::App& app, LaunchCommand* command, std::function<int()> gpus) {
  CLI::App* launch = app.add_subcommand("launch", "Start the ranks of one host and watch them");
  launch->footer(
      "Examples: fsdp-train launch --nproc-per-node 2 -- --config FILE\n"
      "On each of two hosts, R being 0 on node-1 and 1 on the other:\n"
      "  fsdp-train launch --nnodes 2 --nproc-per-node 2 --node-rank R \\\n"
      "    --rdzv-endpoint node-1:29500 --rdzv-secret-file FILE -- --config FILE");
  LaunchOptions& options = command->options;
  launch->add_option("--nnodes", options.nnodes, "Hosts; each runs its own launch")
      ->capture_default_str();
  launch
      ->add_option_function<std::string>(
          "--nproc-per-node",
          [&options, gpus = std::move(gpus)](const std::string& number) {
            if (number == "auto") {
              options.nproc_per_node = std::max(gpus(), 1);
            } else if (!CLI::detail::lexical_cast(number, options.nproc_per_node)) {
              throw CLI::ConversionError(number, "--nproc-per-node");
            }
          },
          "Ranks on this host, the same number on all; auto: one for each of its GPUs, or one")
      ->type_name("INT|auto")
      ->default_str(std::to_string(options.nproc_per_node));
  launch->add_option("--node-rank", options.node_rank, "Number of this host, from 0")
      ->capture_default_str();
  launch->add_option("--rdzv-endpoint", options.rdzv_endpoint,
                     "HOST:PORT where the ranks meet, on the host of node rank 0. Default with "
                     "one host: a free port");
  launch->add_option("--rdzv-id", options.rdzv_id, "The job's name, the same on all hosts");
  launch->add_option("--rdzv-secret-file", options.secret_file,
                     "File with the secret that lets ranks into the job, the same on all hosts. "
                     "Default: FSDP_TRAIN_SECRET; with one host, a random one");
  launch
      ->add_option("--max-restarts", options.max_restarts,
                   "Times that all ranks are started again after one has failed")
      ->capture_default_str();
  launch->add_option("--log-dir", options.log_dir,
                     "Also write the output of each rank to DIR/rank_<r>.log");
  launch
      ->add_option_function<double>(
          "--grace",
          [&options](double seconds) {
            if (!(seconds >= 0 && seconds <= 1e6)) {
              throw ConfigError("--grace: want seconds, 0 to 1000000");
            }
            options.grace = std::chrono::milliseconds(std::llround(seconds * 1000));
          },
          "Seconds for the other ranks to end by themselves after one has failed")
      ->default_str(std::to_string(options.grace.count() / 1000));
  launch
      ->add_option("flags", command->argv,
                   "After `--`: the flags of a training run, or `eval` and its flags")
      ->type_name("");
  launch->allow_extras();
  // When launch's own part is read, not at the end: of a positional before the `--`, CLI11 would
  // conclude that what follows belongs to the program, and refuse that.
  launch->parse_complete_callback([launch, command] {
    // CLI11 leaves over flags that it does not know, and the `--` itself. After that everything is
    // a positional.
    std::string stray;
    for (const std::string& flag : launch->remaining()) {
      if (stray.empty() && flag != "--") stray = flag;
    }
    if (stray.empty() && !command->argv.empty() && command->argv[0] != "eval" &&
        command->argv[0].rfind("-", 0) != 0) {
      stray = command->argv[0];
    }
    if (const std::string meant = MeantBy(stray, "fsdp-train launch --"); !meant.empty()) {
      throw ConfigError("launch: " + stray + ": " + meant);
    }
    if (!stray.empty()) {
      throw ConfigError("launch: " + stray +
                        " is not an option of launch; the flags of the training run come after "
                        "`--`: fsdp-train launch --nproc-per-node 2 -- --config FILE");
    }
    CheckLaunchOptions(command->options);
  });
  return launch;
}

}  // namespace fsdp
