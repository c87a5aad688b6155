// fsdp-train report RUN_DIR [RUN_DIR ...] [--out FILE].
#ifndef FSDP_TRAIN_CMD_REPORT_COMMAND_H_
#define FSDP_TRAIN_CMD_REPORT_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Registers the sub-command. It runs inside app.parse(); throws CheckpointError.
void AddReportCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_REPORT_COMMAND_H_
