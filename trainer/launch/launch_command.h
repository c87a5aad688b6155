// The command line of `fsdp-train launch`.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/launch/launch_options.h"

namespace CLI {
class App;  // <CLI/CLI.hpp> is 6 s of compile time: for the one source that needs it.
}

namespace fsdp {

struct LaunchCommand {
  LaunchOptions options;
  std::vector<std::string> argv;  // After `--`: a training run's flags, or `eval` and its own.
};

// Adds the sub-command, which fills `command`: it must live as long as `app`. Where launch was
// given, app.parse throws ConfigError for options out of range and for flags of a training run
// before the `--`. The caller then returns Launch(command->options, command->argv).
//   gpus  How many this host has: `--nproc-per-node auto` is that many ranks, and one where it has
//         none, which computes on all cores.
CLI::App* AddLaunchCommand(CLI::App& app, LaunchCommand* command, std::function<int()> gpus);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
