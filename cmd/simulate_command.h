// `fsdp-train plan` and `simulate`: a recipe on a machine, without running it.
#ifndef FSDP_TRAIN_CMD_SIMULATE_COMMAND_H_
#define FSDP_TRAIN_CMD_SIMULATE_COMMAND_H_

#include <CLI/CLI.hpp>

#include "trainer/core/errors.h"

namespace fsdp {

// Each runs when its command has been parsed, and leaves what it returns in `code`, which outlives
// the app. Throws as PlanOnHardware() and SimulateProcess() (simulate/simulate_process.h).
void AddPlanCommand(CLI::App& app, ExitCode& code);
void AddSimulateCommand(CLI::App& app, ExitCode& code);
// Prices a collective on a machine that a file describes: for tools/paper/reproduce.
void AddCollectiveCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_SIMULATE_COMMAND_H_
