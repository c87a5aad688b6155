// fsdp-train models.
#ifndef FSDP_TRAIN_CMD_MODELS_COMMAND_H_
#define FSDP_TRAIN_CMD_MODELS_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse().
void AddModelsCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_MODELS_COMMAND_H_
