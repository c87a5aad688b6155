// The run directory: which runs may start in it, and where its files lie.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/family.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/store/store.h"
#include "trainer/data/data_files.h"
#include "trainer/loop/run_lock.h"

namespace fsdp {

struct Recipe;

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
  // Rank 0's alone. goes_back: `resume_from` is this run's own and was asked for by its step or
  // name, so that later ones have to be set aside. `hold` keeps the checkpoint in place until it
  // has been read.
  bool goes_back = false;
  CheckpointHold hold;
  std::shared_ptr<RunLock> lock;  // Rank 0's.
  // Rank 0's alone: how the data differs from the checkpoint's, which data.allow_changed permits.
  std::vector<std::string> data_changed, valid_changed;
  bool data_unknown = false;  // The checkpoint does not say.
  // Rank 0's alone: how the recipe differs from the checkpoint's, which checkpoint.allow_changed
  // permits.
  std::vector<std::string> recipe_changed;
  bool micro_batch_changed = false;  // Sums are then rounded in other places.
  // How metrics.jsonl differs from what the checkpoint knows of it, which checkpoint.allow_changed
  // permits; or why the two are not compared.
  std::string records_changed, records_unknown;
};

// A directory holds a run where it has a checkpoint. A start that saved none may leave other files:
// logs, a recipe.yaml, records of steps. They make no run: the next start may have another recipe,
// and sets aside what it replaces. A file that a run was writing when it was killed is removed.
//
// Called by all ranks. Rank 0 decides, makes the directory and takes its lock. All ranks see the
// same answer: of an error all have the code, and rank 0 alone has the message (ReportedElsewhere).
// Thrown before anything is written:
//   another job is at work in it: CheckpointError
//   a run is there and checkpoint.resume is none: CheckpointError
//   one is there with another recipe, where it matters: ConfigError naming both values
//   it was trained on other data than `data`, without data.allow_changed: DataError with the files
//   metrics.jsonl does not begin with what the checkpoint, one of this directory, knows of it,
//     without checkpoint.allow_changed: CheckpointError
//   the directory cannot be made or written to: CheckpointError
// Every rank then looks for a mark that rank 0 left. Where one does not find it, all throw
// CheckpointError, `not a shared directory`, naming it and its host.
RunStart OpenRunDirectory(const Recipe& recipe, const DataFiles& data, Store& store, int rank,
                          int world, std::chrono::milliseconds patience = RunLock::kPatience);

// The run that a start goes on with, as its checkpoint has it: the files it began with are not
// looked for again. Empty where there is none, and where it cannot be read: OpenRunDirectory() says
// why.
struct RunToResume {
  std::string checkpoint;
  std::shared_ptr<const Recipe> recipe;  // Not null.
  ModelShape shape;
};
std::optional<RunToResume> FindRunToResume(const Recipe& recipe);

// The recipe. Where it gives no dropouts it gets those of the run that it goes on with, whatever
// init_from's files say by now or to this build. Reads the checkpoint's manifest;
// OpenRunDirectory() refuses one that cannot be read.
Recipe WithDropoutsOfRun(const Recipe& recipe);

// Whether there is a checkpoint that a start would go on from. One that cannot be found or read
// counts as none: OpenRunDirectory() refuses it.
bool GoesOn(const Recipe& recipe);

// For the last line of a run that ends before its first step: from which checkpoint it can go on,
// or that there is none.
std::string GoesOnFrom(const Recipe& recipe);

// Renames metrics.jsonl to the first of metrics.1.jsonl, metrics.2.jsonl, ... that is free, and
// returns that path; empty where it has no steps: nothing is renamed then. TensorBoard's files go
// into metrics.1.tensorboard/ and so on, recipe.yaml becomes metrics.1.recipe.yaml. Throws
// CheckpointError.
std::string SetMetricsAside(const RunDirectory& directory);

// The files that a run has set aside to go back to an earlier step.
struct SetAside {
  std::vector<std::string> checkpoints;  // New names of those of later steps, in order.
  std::string metrics;                   // A copy of the records so far.
};
// Makes `step` the newest checkpoint: see GoBackTo(). Where there are later ones, metrics.jsonl is
// first copied to the first free of those names, before the records of the steps that the run
// leaves are dropped: once the later ones are gone, no start would see that it goes back. Throws
// CheckpointError.
SetAside GoBack(const RunDirectory& directory, int64_t step);

// Makes the checks of OpenRunDirectory() that write nothing, for --dry-run.
void CheckRunDirectory(const Recipe& recipe, const DataFiles& data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_DIRECTORY_H_
