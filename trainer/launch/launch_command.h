// The command line of `fsdp-train launch`.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/core/command_line.h"
#include "trainer/launch/launch_options.h"

namespace fsdp {

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_COMMAND_H_
