#ifndef FSDP_TRAIN_CMD_CACHE_COMMAND_H_
#define FSDP_TRAIN_CMD_CACHE_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// `cache ls` and `cache clean`: tokens that runs keep.
void AddCacheCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_CACHE_COMMAND_H_
