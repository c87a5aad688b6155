// fsdp-train calibrate.
// Tests: tests/e2e/calibrate_test.cc
#ifndef FSDP_TRAIN_CMD_CALIBRATE_COMMAND_H_
#define FSDP_TRAIN_CMD_CALIBRATE_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse().
void AddCalibrateCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_CALIBRATE_COMMAND_H_
