// fsdp-train config check|print|schema|docs.
#ifndef FSDP_TRAIN_CMD_CONFIG_COMMAND_H_
#define FSDP_TRAIN_CMD_CONFIG_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse(); throws ConfigError.
void AddConfigCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_CONFIG_COMMAND_H_
