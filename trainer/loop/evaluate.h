// `fsdp-train eval`: the loss of the validation sets under weights that are there.
// Tests: tests/e2e/eval_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_EVALUATE_H_
#define FSDP_TRAIN_TRAINER_LOOP_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/loop/job.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

struct EvaluationFlags {
  std::string checkpoint;  // A run's directory, a checkpoint's, or a Hugging Face one.
  // The recipe to evaluate by. No file: the one that the checkpoint was trained by.
  std::vector<std::string> config, overrides;
  bool latest = false;  // Takes a run's newest checkpoint, also where it has ended early.
  bool full = false;    // Evaluates all of each set, in place of eval.steps batches.
  bool json = false;
  std::string predictions;  // A file with a line for each sample; empty: none is written.
  std::string by = "";      // A checkpoint whose recipe is taken for a Hugging Face directory.
};

struct Evaluation {
  Recipe recipe;                               // The recipe of a job that evaluates alone.
  std::string checkpoint;                      // The checkpoint's own directory.
  std::string note = "";                       // ChosenCheckpoint::note.
  bool ours = false;                           // Not a Hugging Face directory.
  std::optional<int64_t> step = std::nullopt;  // The checkpoint's, where `ours`.
  bool averaged = false;                       // Takes its averaged weights: eval.ema.
  bool json = false;
  std::string predictions = "";                        // As in the flags.
  std::function<void(double loss)> on_loss = nullptr;  // Hears the loss of each set in turn.
};

// Reads the recipe. Reads the model with its adapters and the run's seed from the checkpoint, so
// that the sets are those that the run evaluated. Throws ConfigError, CheckpointError.
Evaluation PrepareEvaluation(const EvaluationFlags& flags);

// Changes fsdp.shard_size where the recipe's is not for `world` ranks: losses depend on it by
// rounding alone. Leaves one that --set gave: CheckWorld() refuses it. Returns a line about the
// change; empty: there was none.
std::string ShardFor(int world, Recipe& recipe);

// Evaluates on every rank of the job, and prints on rank 0's console. Rank 0 replaces the file of
// predictions when all are there; nothing else is written to any disk. For one world and the run's
// own recipe the losses are those that the run recorded at that step, bit for bit. Throws Error
// with an exit code.
ExitCode EvaluateRank(const Evaluation& evaluation, const Job& job);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_EVALUATE_H_
