// The sub-commands of fsdp-train, but for those whose ranks main.cc starts. Each runs on its own
// flags; its `run` throws Error.
#ifndef FSDP_TRAIN_CMD_COMMANDS_H_
#define FSDP_TRAIN_CMD_COMMANDS_H_

#include "trainer/core/command_line.h"

namespace fsdp {

Command BenchCommand();       // ops, comm, gemm, floor: how fast this machine does a step's parts.
Command BenchFloorCommand();  // `bench floor`.
Command CacheCommand();       // ls, clean: tokens that runs keep.
Command CalibrateCommand();
Command CheckpointCommand();  // ls, verify, reshard, export, import.
Command CollectiveCommand();  // Prices a collective: for tools/paper/reproduce.
Command ConfigCommand();      // check, print, schema, docs.
Command DataCommand();
Command DevicesCommand();
Command GenerateCommand();
Command HelpCommand(const Command& program);  // Also shows the help of program's commands.
Command ModelsCommand();
Command PlanCommand();
Command ReportCommand();
Command SimulateCommand();
Command TokenizeCommand();

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_COMMANDS_H_
