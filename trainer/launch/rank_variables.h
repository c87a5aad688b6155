// A rank's environment.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_

#include <string>
#include <vector>

#include "trainer/launch/launch_options.h"

namespace fsdp {

// The same for all ranks of a start.
struct RankVariables {
  Endpoint endpoint;  // The store's.
  int restart = 0;
  std::string run_id;
  std::string secret;    // Empty: the ranks have what this process has.
  std::string terminal;  // For rank 0: kTerminalVariable of core/terminal.h.
};

// "NAME=value" for rank `local` of this host: this process's environment, with torchrun's variables
// (environment.h) in place of those of the same names.
std::vector<std::string> EnvironmentOf(int local, const LaunchOptions& options,
                                       const RankVariables& variables);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_
