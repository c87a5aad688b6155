// The training loop of one rank.
#ifndef FSDP_TRAIN_TRAINER_LOOP_TRAIN_H_
#define FSDP_TRAIN_TRAINER_LOOP_TRAIN_H_

#include "trainer/core/errors.h"
#include "trainer/loop/job.h"

namespace fsdp {

struct Recipe;

// Trains to train.steps and returns kDone, or until a rank is asked to stop, or the job's time is
// over, and returns kStopped: then a checkpoint is saved, and rank 0's last line names it. A
// console that has lost its reader is a stop, too. Rank 0 writes the run directory's files. Throws
// EarlyStop on all ranks where one is asked to stop before the first step is done; otherwise Error
// with an exit code. Files on disk by then are complete.
ExitCode TrainRank(const Recipe& recipe, const Job& job);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_TRAIN_H_
