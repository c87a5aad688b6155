#include "trainer/launch/launch_command.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>

#include "trainer/core/errors.h"

namespace fsdp {

CLI::App* AddLaunchCommand(CLI::App& app, LaunchCommand* command) {
  CLI::App* launch = app.add_subcommand("launch", "Start the ranks of one host and watch them");
  launch->footer("Example: fsdp-train launch --nproc-per-node 2 -- --config FILE");
  LaunchOptions& options = command->options;
  launch->add_option("--nnodes", options.nnodes, "Hosts; 1 in this version")->capture_default_str();
  launch->add_option("--nproc-per-node", options.nproc_per_node, "Ranks on this host")
      ->capture_default_str();
  launch->add_option("--node-rank", options.node_rank, "Which of the hosts this is")
      ->capture_default_str();
  launch->add_option("--rdzv-endpoint", options.rdzv_endpoint,
                     "HOST:PORT where the ranks meet; a free port of this host if not given");
  launch
      ->add_option("--max-restarts", options.max_restarts,
                   "How often all ranks are started again when one fails")
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
  launch->add_option("flags", command->argv, "After `--`: the flags of a training run")
      ->type_name("");
  launch->allow_extras();
  // When launch's own part is read, not at the end: of a positional before the `--`, CLI11 would
  // conclude that what follows belongs to the program, and refuse that.
  launch->parse_complete_callback([launch, command] {
    // What CLI11 leaves over: flags it does not know, and the `--` itself. After that everything
    // is a positional.
    std::string stray;
    for (const std::string& flag : launch->remaining()) {
      if (stray.empty() && flag != "--") stray = flag;
    }
    if (stray.empty() && !command->argv.empty() && command->argv[0].rfind("-", 0) != 0) {
      stray = command->argv[0];
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
