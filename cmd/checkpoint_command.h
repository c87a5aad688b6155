// fsdp-train checkpoint ls|verify|reshard|export|import.
#ifndef FSDP_TRAIN_CMD_CHECKPOINT_COMMAND_H_
#define FSDP_TRAIN_CMD_CHECKPOINT_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse(); throws CheckpointError, ConfigError.
void AddCheckpointCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_CHECKPOINT_COMMAND_H_
