// fsdp-train eval.
#ifndef FSDP_TRAIN_CMD_EVAL_COMMAND_H_
#define FSDP_TRAIN_CMD_EVAL_COMMAND_H_

#include <CLI/CLI.hpp>

#include "trainer/loop/evaluate.h"

namespace fsdp {

// The flags of `eval`, for its sub-command and for the ranks that `launch` starts.
void AddEvaluationFlags(CLI::App& app, EvaluationFlags& flags);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_EVAL_COMMAND_H_
