// The run directory: who may start in it, and where things lie.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_

#include <string>

#include "trainer/checkpoint/checkpoint_hold.h"
#include "trainer/comm/store.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

struct RunDirectory {
  std::string path;
  std::string recipe() const { return path + "/recipe.yaml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string provenance() const { return path + "/provenance.json"; }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string log(int rank) const { return path + "/logs/rank_" + std::to_string(rank) + ".log"; }
  std::string trace(int64_t step) const {
    return path + "/traces/step_" + std::to_string(step) + ".json";
  }
};

struct RunStart {
  RunDirectory directory;
  std::string resume_from;  // A checkpoint's directory; empty: from the beginning.
  bool held_a_run = false;
  // Of rank 0 alone: `resume_from` is this run's own and was asked for by its step or name, so that
  // later ones have to be set aside; and what keeps it where it is until it has been read.
  bool goes_back = false;
  CheckpointHold hold;
};

// Called by all ranks. Rank 0 decides and makes the directory, all see the same answer. Before
// anything is written:
//   a run is there and checkpoint.resume is none: CheckpointError
//   one is there with another recipe, where it matters: ConfigError naming both values
//   the directory cannot be made or written to: CheckpointError
// Every rank then looks for a mark that rank 0 left. Where one does not find it, all throw
// CheckpointError, `not a shared directory`, naming it and its host.
RunStart OpenRunDirectory(const Recipe& recipe, Store& store, int rank, int world);

// Renames metrics.jsonl to the first of metrics.1.jsonl, metrics.2.jsonl, ... that is free, and
// returns that path; empty where there is none to rename. TensorBoard's files go into
// metrics.1.tensorboard/ and so on. Throws CheckpointError.
std::string SetMetricsAside(const RunDirectory& directory);

// The checks of it that need nothing written, for --dry-run.
void CheckRunDirectory(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_
