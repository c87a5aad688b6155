// `fsdp-train tokenize`: from files of text to shards of tokens (trainer/data/tokenize.h).
#ifndef FSDP_TRAIN_CMD_TOKENIZE_COMMAND_H_
#define FSDP_TRAIN_CMD_TOKENIZE_COMMAND_H_

#include <CLI/CLI.hpp>

namespace fsdp {

// Runs while the command line is parsed. Throws DataError.
void AddTokenizeCommand(CLI::App& app);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_TOKENIZE_COMMAND_H_
