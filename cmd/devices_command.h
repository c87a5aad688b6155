// fsdp-train devices.
#ifndef FSDP_TRAIN_CMD_DEVICES_COMMAND_H_
#define FSDP_TRAIN_CMD_DEVICES_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse(), and works on every host.
void AddDevicesCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_DEVICES_COMMAND_H_
