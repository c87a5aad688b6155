// The checkpoint that generate, export and eval read where they are given a run's directory.
// Tests: tests/e2e/early_end_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_CHOSEN_CHECKPOINT_H_
#define FSDP_TRAIN_TRAINER_LOOP_CHOSEN_CHECKPOINT_H_

#include <string>

namespace fsdp {

struct ChosenCheckpoint {
  std::string path;  // The path given, or the directory of its run's best checkpoint.
  std::string note;  // A line about a run that ended early; empty for all else.
};

// Takes the best checkpoint of a run directory whose last record says that early stopping ended
// it, unless `latest`. Any other path stays as it is. Throws CheckpointError where `best` cannot be
// read.
ChosenCheckpoint ChooseCheckpoint(const std::string& path, bool latest);

// "its best checkpoint is step_20, of loss 6.8863", for the best one's directory.
std::string DescribeBest(const std::string& best);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CHOSEN_CHECKPOINT_H_
