// `fsdp-train bench floor`: how short a recipe's step can be on a described machine.
#ifndef FSDP_TRAIN_CMD_BENCH_FLOOR_H_
#define FSDP_TRAIN_CMD_BENCH_FLOOR_H_

#include <CLI/CLI.hpp>

namespace fsdp {

void AddBenchFloor(CLI::App& bench);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_BENCH_FLOOR_H_
