// `fsdp-train bench`: how fast this machine does what a step is made of.
#ifndef FSDP_TRAIN_CMD_BENCH_COMMAND_H_
#define FSDP_TRAIN_CMD_BENCH_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

void AddBenchCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_BENCH_COMMAND_H_
